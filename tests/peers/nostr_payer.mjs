// A buyer that has nothing of ours: nostr-tools, and Node's own hashing. Arguments: the bundle of nostr-tools, a
// connection (NIP-47), and a file with a job, {schema, inputs}. It asks for the job, pays the invoice from its wallet,
// and prints what it got as JSON.
import { readFileSync } from 'node:fs'
import { canonical, nostrTools, sha256 } from './nostr_words.mjs'

const [bundle, connection, file] = process.argv.slice(2)
const { Relay, finalizeEvent, generateSecretKey, getPublicKey, nip04, nip44, nip47, verifyEvent } = nostrTools(bundle)

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
const { schema, inputs } = JSON.parse(readFileSync(file, 'utf8'))
const job_hash = `sha256:${sha256(canonical({ schema_id: schema, inputs }))}`
const job = finalizeEvent(
  { kind: 5050, created_at: Math.floor(Date.now() / 1000), tags: [['p', announced.pubkey]],
    content: JSON.stringify({ job_type: schema, schema_version: 1, job_hash, payload: inputs }) }, buyer)
const answered = first({ kinds: [7000], '#e': [job.id] })
const result = first({ kinds: [6050], '#e': [job.id] })
const before = await balance()
await relay.publish(job)
const demand = await answered
if (tag(demand, 'status')[1] !== 'payment-required') throw new Error(tag(demand, 'status').join(' '))
const [, msats, invoice] = tag(demand, 'amount')
const payment = await nip47.makeNwcRequestEvent(wallet, client, invoice)
const paid = await asked(payment, (text) => nip04.decrypt(client, wallet, text))
const got = await result
const found = {
  info: info.content, isInfoSigned: verifyEvent(info), msats: Number(msats), invoice, spent: before - (await balance()),
  isSigned: verifyEvent(got), outputs: JSON.parse(got.content).outputs, error: paid.error,
}
if (!paid.error) {
  found.preimage = paid.result.preimage
  found.payment_hash = sha256(Buffer.from(found.preimage, 'hex'))
  found.receipt = JSON.parse(tag(got, 'receipt')[1])
}
process.stdout.write(JSON.stringify(found))
process.exit(0)
