// An OSSA agent that has nothing of Trunkline's: Node.js and, if a path to it is given, the package `jose`.
//
//   node ossa_agent.mjs https://127.0.0.1:7413 KEYS.json [jose/dist/webapi/index.js]
//
// It offers `double`, asks `py/echo` for something encrypted, and prints one line of JSON for each thing it saw.
import crypto from 'node:crypto'
import fs from 'node:fs'

const [url, file, path] = process.argv.slice(2)
const own = JSON.parse(fs.readFileSync(file))
const b64 = (data) => Buffer.from(data).toString('base64url')
const raw = (text) => Buffer.from(text, 'base64url')
const told = (what) => console.log(JSON.stringify(what))

// RFC 8785: what JSON.stringify writes, with sorted keys.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(',')}}`
}

// --- with node:crypto only -------------------------------------------------------------------------------------------

const uint32 = (n) => { const data = Buffer.alloc(4); data.writeUInt32BE(n); return data }

function agreed(secret, alg, bits) {
  const info = [uint32(alg.length), Buffer.from(alg), uint32(0), uint32(0), uint32(bits)]
  return crypto.createHash('sha256').update(Buffer.concat([uint32(1), secret, ...info])).digest()
}

const bare = {
  sign(header, payload, jwk) {
    const signed = `${b64(JSON.stringify(header))}.${b64(payload)}`
    return [signed.split('.')[0], b64(crypto.sign(null, Buffer.from(signed), crypto.createPrivateKey({ key: jwk, format: 'jwk' })))]
  },
  verify(first, payload, signature, jwk) {
    return crypto.verify(null, Buffer.from(`${first}.${b64(payload)}`), crypto.createPublicKey({ key: jwk, format: 'jwk' }), raw(signature))
  },
  encrypt(plain, header, jwk) {
    const pair = crypto.generateKeyPairSync('x25519')
    const epk = pair.publicKey.export({ format: 'jwk' })
    const secret = crypto.diffieHellman({ privateKey: pair.privateKey, publicKey: crypto.createPublicKey({ key: jwk, format: 'jwk' }) })
    const key = crypto.randomBytes(32)
    const wrap = crypto.createCipheriv('id-aes256-wrap', agreed(secret, header.alg, 256), Buffer.alloc(8, 0xa6))
    const wrapped = Buffer.concat([wrap.update(key), wrap.final()])
    const first = b64(JSON.stringify({ ...header, epk }))
    const iv = crypto.randomBytes(12)
    const cipher = crypto.createCipheriv('aes-256-gcm', key, iv).setAAD(Buffer.from(first))
    const text = Buffer.concat([cipher.update(plain), cipher.final()])
    return [first, b64(wrapped), b64(iv), b64(text), b64(cipher.getAuthTag())].join('.')
  },
  decrypt(jwe, jwk) {
    const [first, wrapped, iv, text, tag] = jwe.split('.')
    const header = JSON.parse(raw(first))
    const publicKey = crypto.createPublicKey({ key: header.epk, format: 'jwk' })
    const secret = crypto.diffieHellman({ privateKey: crypto.createPrivateKey({ key: jwk, format: 'jwk' }), publicKey })
    const unwrap = crypto.createDecipheriv('id-aes256-wrap', agreed(secret, header.alg, 256), Buffer.alloc(8, 0xa6))
    const key = Buffer.concat([unwrap.update(raw(wrapped)), unwrap.final()])
    const cipher = crypto.createDecipheriv('aes-256-gcm', key, raw(iv)).setAAD(Buffer.from(first)).setAuthTag(raw(tag))
    return [header, Buffer.concat([cipher.update(raw(text)), cipher.final()])]
  },
}

// --- with jose --------------------------------------------------------------------------------------------------------

async function withJose() {
  const jose = await import(path)
  return {
    async sign(header, payload, jwk) {
      const made = await new jose.FlattenedSign(Buffer.from(payload)).setProtectedHeader(header).sign(await jose.importJWK(jwk, 'EdDSA'))
      return [made.protected, made.signature]
    },
    async verify(first, payload, signature, jwk) {
      await jose.flattenedVerify({ protected: first, payload: b64(payload), signature }, await jose.importJWK(jwk, 'EdDSA'))
      return true
    },
    async encrypt(plain, header, jwk) {
      return new jose.CompactEncrypt(Buffer.from(plain)).setProtectedHeader(header).encrypt(await jose.importJWK(jwk, header.alg))
    },
    async decrypt(jwe, jwk) {
      const { plaintext, protectedHeader } = await jose.compactDecrypt(jwe, await jose.importJWK(jwk, 'ECDH-ES+A256KW'))
      return [protectedHeader, Buffer.from(plaintext)]
    },
  }
}

const lib = path ? await withJose() : bare
const { keys } = await (await fetch(`${url}/ossa/v1/keys`)).json()
const theirs = Object.fromEntries(keys.map((key) => [key.use, key]))
const me = { agentId: own.agent, agentType: 'worker' }

async function made(type, to, action, payload, more = {}, sealed = false) {
  const messageId = crypto.randomUUID()
  if (sealed) {
    const header = { alg: 'ECDH-ES+A256KW', enc: 'A256GCM', kid: theirs.enc.kid, messageId }
    payload = { $encrypted: await lib.encrypt(JSON.stringify(payload), header, theirs.enc) }
    more = { ...more, sensitive: true }
  }
  const header = { messageId, type, version: '1.0.0', timestamp: new Date().toISOString(), sender: me, recipient: { agentId: to, agentType: 'worker' }, ...more }
  const message = { header, body: { action, payload } }
  const [first, signature] = await lib.sign({ alg: 'EdDSA', kid: own.jwk.kid, typ: 'ossa+jws' }, canonical(message), own.jwk)
  return JSON.stringify({ ...message, signature: `${first}..${signature}` })
}

// A message of the exchange, its signature checked and its payload opened.
async function read(text) {
  const { signature, ...message } = JSON.parse(text)
  const [first, , last] = signature.split('.')
  if (JSON.parse(raw(first)).kid !== theirs.sig.kid) throw new Error('another key')
  if (!(await lib.verify(first, canonical(message), last, theirs.sig))) throw new Error('a bad signature')
  const sealed = message.body.payload?.$encrypted
  if (sealed) {
    const [header, plain] = await lib.decrypt(sealed, own.enc_jwk)
    if (header.messageId !== message.header.messageId) throw new Error('of another message')
    message.body.payload = JSON.parse(plain)
  }
  return [message, Boolean(sealed)]
}

const socket = new WebSocket(`${url.replace('https', 'wss')}/ossa/v1/ws`)
socket.onerror = (event) => told({ error: String(event.message ?? event.error) })
socket.onopen = async () => {
  const actions = [{ name: 'double', input_schema: { type: 'object' }, side_effects: false }]
  socket.send(await made('request', 'trunkline', 'register', { actions }))
}
socket.onmessage = async ({ data }) => {
  try {
    const [message, sealed] = await read(data)
    const { header, body } = message
    if (header.type === 'request') {
      told({ request: body.payload, sealed })
      socket.send(await made('response', 'trunkline', body.action, { n: body.payload.n * 2, 'é€😀': 0.1 }, { correlationId: header.correlationId }, sealed))
    } else if (body.payload?.registered) {
      told({ registered: body.payload.registered })
      for (const secret of [false, true]) {
        const request = await made('request', 'py', 'echo', { n: 1e21, text: 'é€😀', secret }, {}, secret)
        const answer = await fetch(`${url}/ossa/v1/messages`, { method: 'POST', body: request, headers: { 'content-type': 'application/json' } })
        const [reply, isSealed] = await read(await answer.text())
        told({ status: answer.status, reply: reply.body.payload, sealed: isSealed })
      }
    }
  } catch (error) {
    told({ error: String(error) })
  }
}
