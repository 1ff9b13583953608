// A buyer that has nothing of ours: nostr-tools, and Node's own hashing. Arguments: the bundle of nostr-tools and a
// connection (NIP-47). It asks for a priced job, pays the invoice from its wallet, and prints what it got as JSON.
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import vm from 'node:vm'

const [bundle, connection] = process.argv.slice(2)
vm.runInThisContext(readFileSync(bundle, 'utf8') + '\nglobalThis.NostrTools = NostrTools')
const { Relay, finalizeEvent, generateSecretKey, getPublicKey, nip04, nip44, nip47, verifyEvent } = globalThis.NostrTools

const canonical = (value) =>
  Array.isArray(value)
    ? `[${value.map(canonical).join(',')}]`
    : value !== null && typeof value === 'object'
      ? `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(',')}}`
      : JSON.stringify(value)
const sha256 = (data) => createHash('sha256').update(data).digest('hex')

const { pubkey: wallet, relay: url, secret } = nip47.parseConnectionString(connection)
const relay = await Relay.connect(url)
const first = (filter, wanted = () => true) =>
  new Promise((found) => {
    const subscription = relay.subscribe([filter], {
      onevent: (event) => wanted(event) && (subscription.close(), found(event)),
    })
  })
const tag = (event, name) => event.tags.find((one) => one[0] === name)

const info = await first({ kinds: [13194], authors: [wallet] })
const client = Uint8Array.from(Buffer.from(secret, 'hex'))

// The library's own request is encrypted by NIP-04; the answer comes in the same form.
async function asked(request, open) {
  const answer = first({ kinds: [23195], '#e': [request.id] })
  await relay.publish(request)
  return JSON.parse(await open((await answer).content))
}
async function balance() {
  const key = nip44.v2.utils.getConversationKey(client, wallet)
  const content = nip44.v2.encrypt(JSON.stringify({ method: 'get_balance', params: {} }), key)
  const tags = [['p', wallet], ['encryption', 'nip44_v2']]
  const request = finalizeEvent({ kind: 23194, created_at: Math.floor(Date.now() / 1000), tags, content }, client)
  return (await asked(request, (text) => nip44.v2.decrypt(text, key))).result.balance
}

const buyer = generateSecretKey()
const announced = await first({ kinds: [31990] })
const schema = 'oa.embedding.v1'
const inputs = { dimensions: 4, model: 'trunkline-hashing-v1', normalize: true, texts: ['hello'] }
const job_hash = `sha256:${sha256(canonical({ schema_id: schema, inputs }))}`
const job = finalizeEvent(
  { kind: 5050, created_at: Math.floor(Date.now() / 1000), tags: [['p', announced.pubkey]],
    content: JSON.stringify({ job_type: schema, schema_version: 1, job_hash, payload: inputs }) }, buyer)
const invoiced = first({ kinds: [7000], '#e': [job.id] }, (event) => tag(event, 'status')[1] === 'payment-required')
const result = first({ kinds: [6050], '#e': [job.id] })
const before = await balance()
await relay.publish(job)
const [, msats, invoice] = tag(await invoiced, 'amount')
const payment = await nip47.makeNwcRequestEvent(wallet, client, invoice)
const paid = await asked(payment, (text) => nip04.decrypt(client, wallet, text))
const got = await result
const receipt = JSON.parse(tag(got, 'receipt')[1])
process.stdout.write(JSON.stringify({
  info: info.content, isInfoSigned: verifyEvent(info), msats: Number(msats), invoice, preimage: paid.result.preimage,
  payment_hash: sha256(Buffer.from(paid.result.preimage, 'hex')), spent: before - (await balance()),
  isSigned: verifyEvent(got), outputs: JSON.parse(got.content).outputs, receipt,
}))
process.exit(0)
