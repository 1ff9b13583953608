// The one form of a JSON value that is hashed (RFC 8785), and its hash, computed in the browser from what is shown.

/** The canonical text; null if a number in it is not the one that was written, as with very large ones. */
export function canonical(value) {
  if (value === null || typeof value === "boolean" || typeof value === "string") return JSON.stringify(value);
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value) ? null : JSON.stringify(value);
  if (Array.isArray(value)) return joined(value.map(canonical), "[", "]");
  const members = Object.keys(value).sort().map((name) => {
    const text = canonical(value[name]);
    return text === null ? null : `${JSON.stringify(name)}:${text}`;
  });
  return joined(members, "{", "}");
}

function joined(parts, before, after) {
  return parts.includes(null) ? null : `${before}${parts.join(",")}${after}`;
}

/** "sha256:…" of the canonical form; null if there is none. */
export async function hashOf(value) {
  const text = canonical(value);
  if (text === null || !globalThis.crypto?.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return `sha256:${Array.from(new Uint8Array(digest), (one) => one.toString(16).padStart(2, "0")).join("")}`;
}
