// A buyer that has nothing of ours: nostr-tools, and Node's own hashing. Arguments: the bundle of nostr-tools, the relay.
// It looks for a provider, posts one open and one private job, and prints what it found as one JSON object.
import { hash, nostrTools } from './nostr_words.mjs'

const [bundle, url] = process.argv.slice(2)
const { Relay, finalizeEvent, generateSecretKey, getPublicKey, verifyEvent, nip19, nip44 } = nostrTools(bundle)

const secret = generateSecretKey()
const buyer = getPublicKey(secret)
const relay = await Relay.connect(url)
const first = (filter) =>
  new Promise((found) => {
    const subscription = relay.subscribe([filter], { onevent: (event) => (subscription.close(), found(event)) })
  })

const announced = await first({ kinds: [31990] })
const provider = announced.pubkey
const content = JSON.parse(announced.content)
const inputs = { count: 2, word: 'ünïcode "quoted"' }
const schema = content.capabilities.supported_jobs.find((id) => id.startsWith('oa.trunkline.'))
const envelope = JSON.stringify({
  job_type: schema, schema_version: 1, job_hash: hash({ schema_id: schema, inputs }), payload: inputs,
})

async function job(isPrivate) {
  const key = nip44.v2.utils.getConversationKey(secret, provider)
  const tags = isPrivate
    ? [['p', provider], ['encrypted']]
    : [['p', provider], ['param', 'schema_id', schema], ['i', JSON.stringify(inputs), 'text'], ['output', 'application/json']]
  const request = finalizeEvent(
    { kind: 5050, created_at: Math.floor(Date.now() / 1000), tags,
      content: isPrivate ? nip44.v2.encrypt(envelope, key) : envelope }, secret)
  const statuses = []
  let done
  const ended = new Promise((end) => (done = end))
  const subscription = relay.subscribe([{ kinds: [6050, 7000], '#e': [request.id] }], {
    onevent: (event) => {
      if (event.kind === 7000) statuses.push(event.tags.find((tag) => tag[0] === 'status')[1])
      else subscription.result = event
      if (subscription.result && statuses.includes('success')) done(subscription.result)
    },
  })
  await relay.publish(request)
  const result = await ended
  subscription.close()
  const said = JSON.parse(isPrivate ? nip44.v2.decrypt(result.content, key) : result.content)
  return {
    statuses, isSigned: verifyEvent(result) && result.pubkey === provider,
    isForUs: result.tags.some((tag) => tag[0] === 'p' && tag[1] === buyer),
    outputs: said.outputs, isHash: said.output_hash === hash(said.outputs), model: said.provenance.model,
    isProvider: said.provenance.provider_id === nip19.npubEncode(provider),
    showsInputs: JSON.stringify(result).includes('quoted'),
  }
}

const found = { announced: verifyEvent(announced), open: await job(false), private: await job(true) }
process.stdout.write(JSON.stringify(found))
process.exit(0)
