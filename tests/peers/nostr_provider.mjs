// A provider that has nothing of ours: nostr-tools, and Node's own hashing. Arguments: the bundle of nostr-tools, the
// relay. It announces one job type of its own, does each job that it is asked for, and ends when standard input does.
import { hash, nostrTools } from './nostr_words.mjs'

const [bundle, url] = process.argv.slice(2)
const { Relay, finalizeEvent, generateSecretKey, getPublicKey, verifyEvent, nip19, nip44 } = nostrTools(bundle)

const secret = generateSecretKey()
const provider = getPublicKey(secret)
const relay = await Relay.connect(url)
const publish = (kind, tags, content) =>
  relay.publish(finalizeEvent({ kind, created_at: Math.floor(Date.now() / 1000), tags, content }, secret))

relay.subscribe([{ kinds: [5050], '#p': [provider] }], {
  onevent: async (request) => {
    const isPrivate = request.tags.some((tag) => tag[0] === 'encrypted')
    const key = nip44.v2.utils.getConversationKey(secret, request.pubkey)
    const about = [['e', request.id], ['p', request.pubkey], ...(isPrivate ? [['encrypted']] : [])]
    const job = JSON.parse(isPrivate ? nip44.v2.decrypt(request.content, key) : request.content)
    const isOurs = verifyEvent(request) && job.job_hash === hash({ schema_id: job.job_type, inputs: job.payload })
    if (!isOurs) return publish(7000, [['status', 'error', 'the job_hash does not compute'], ...about], '')
    await publish(7000, [['status', 'processing'], ...about], '')
    const outputs = { words: Array(job.payload.count).fill(job.payload.word), seenTag: request.tags.map((tag) => tag[0]) }
    const content = JSON.stringify({
      outputs,
      provenance: { model: 'node', provider_id: nip19.npubEncode(provider) },
      output_hash: hash(outputs),
    })
    await publish(6050, [['request', JSON.stringify(request)], ...about], isPrivate ? nip44.v2.encrypt(content, key) : content)
  },
})
await publish(31990, [['d', 'node'], ['k', '5050']], JSON.stringify({
  supply_class: 'SingleNode',
  capabilities: { supported_jobs: ['oa.words.repeat.v1'], models: ['node'] },
  pricing: { input_tokens_per_1k_msats: 0, output_tokens_per_1k_msats: 0, sandbox_per_minute_msats: 0 },
  capacity: { max_concurrent_jobs: 2, max_context_tokens: 1000 },
}))
process.stdout.write(`${nip19.npubEncode(provider)}\n`)
process.stdin.on('end', () => process.exit(0)).resume()
