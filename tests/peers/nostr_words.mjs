// What the programs here that speak Nostr share: nostr-tools, of the bundle that is named, and hashes of JSON by Node's own.
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import vm from 'node:vm'

export const nostrTools = (bundle) => {
  vm.runInThisContext(readFileSync(bundle, 'utf8') + '\nglobalThis.NostrTools = NostrTools')
  return globalThis.NostrTools
}

export const canonical = (value) =>
  Array.isArray(value)
    ? `[${value.map(canonical).join(',')}]`
    : value !== null && typeof value === 'object'
      ? `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(',')}}`
      : JSON.stringify(value)
export const sha256 = (data) => createHash('sha256').update(data).digest('hex')
export const hash = (value) => `sha256:${sha256(canonical(value))}`
