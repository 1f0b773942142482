import { TidingsError } from "../connection/errors.js"

/** Event of a delivery. Which members it has depends on the hook's format: `raw` has only the payload. */
export interface HookEvent<Payload = unknown> {
  id?: string
  type?: string
  /** Time of the event, ISO 8601. */
  ts?: string
  payload: Payload
}

/** A delivery whose signature is right. */
export interface Delivery<Payload = unknown> {
  /** The same in all attempts of a delivery: remember it to handle each delivery once. */
  readonly id: string
  readonly sentAt: Date
  readonly event: HookEvent<Payload>
  /** The body as it came. */
  readonly body: string
}

/** A request that is not a delivery of this hook. Answer it with 400 or 401. */
export class VerificationError extends TidingsError {
  constructor(code: "HEADERS" | "TIMESTAMP" | "SIGNATURE" | "BODY", message: string) {
    super(message, { code })
  }
}

/** A request of a fetch handler, of Node's `http`, or one that was read already. */
export type HookRequest =
  | Request
  | (AsyncIterable<Uint8Array | string> & { readonly headers: Record<string, string | string[] | undefined> })
  | { readonly headers: Headers | Record<string, string | string[] | undefined>; readonly body: string | Uint8Array }

export interface VerifyOptions {
  /** How far the sender's clock may be off. Default: five minutes. */
  toleranceMs?: number
  /** Longest body that is read. Default: 1 MiB. */
  maxBytes?: number
  /** The time, in milliseconds. Default: now. */
  now?: number
}

const encoder = new TextEncoder()

/**
 * Verifies a delivery by Standard Webhooks and reads it. With several secrets any may have signed, as while one is rotated.
 * The body must not have been read or changed before. Throws {@link VerificationError}.
 */
export async function verify<Payload = unknown>(
  request: HookRequest,
  secret: string | readonly string[],
  { toleranceMs = 300_000, maxBytes = 1024 * 1024, now = Date.now() }: VerifyOptions = {},
): Promise<Delivery<Payload>> {
  const header = headersOf(request)
  const [id, timestamp, signatures] = [header("webhook-id"), header("webhook-timestamp"), header("webhook-signature")]
  if (!id || !timestamp || !signatures) {
    throw new VerificationError("HEADERS", "a header of webhooks is missing")
  }
  const sentAt = /^\d{1,12}$/.test(timestamp) ? Number(timestamp) * 1000 : NaN
  if (!(Math.abs(now - sentAt) <= toleranceMs)) {
    throw new VerificationError("TIMESTAMP", `the time ${timestamp.slice(0, 40)} is not within ${toleranceMs / 1000} s of now`)
  }
  const keys = await Promise.all((typeof secret === "string" ? [secret] : secret).map(importKey))
  const body = await bodyOf(request, maxBytes)
  const signed = await concat(encoder.encode(`${id}.${timestamp}.`), body)
  const given = signatures.split(" ").filter(each => each.startsWith("v1,")).slice(0, 16)
  let verified = false
  for (const key of keys) {
    for (const each of given) {
      const bytes = decodeBase64(each.slice(3))
      // Compares in constant time.
      if (bytes && (await crypto.subtle.verify("HMAC", key, bytes, signed))) verified = true
    }
  }
  if (!verified) throw new VerificationError("SIGNATURE", "no signature is right")
  const text = new TextDecoder().decode(body)
  return { id, sentAt: new Date(sentAt), event: eventOf<Payload>(header, text), body: text }
}

function importKey(secret: string): Promise<CryptoKey> {
  const bytes = decodeBase64(secret.replace(/^whsec_/, ""))
  if (!bytes?.length) throw new TypeError("a secret is whsec_ and base64")
  return crypto.subtle.importKey("raw", bytes, { name: "HMAC", hash: "SHA-256" }, false, ["verify"])
}

function headersOf(request: HookRequest): (name: string) => string | undefined {
  const { headers } = request
  if (headers instanceof Headers) return name => headers.get(name) ?? undefined
  const lower = new Map(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
  return name => {
    const value = lower.get(name)
    return Array.isArray(value) ? value.join(" ") : value
  }
}

async function bodyOf(request: HookRequest, maxBytes: number): Promise<Uint8Array<ArrayBuffer>> {
  const chunks = Symbol.asyncIterator in request ? request : request instanceof Request ? (request.body ?? []) : [request.body]
  const parts: Uint8Array<ArrayBuffer>[] = []
  let size = 0
  for await (const chunk of chunks) {
    const bytes = typeof chunk === "string" ? encoder.encode(chunk) : (chunk as Uint8Array<ArrayBuffer>)
    size += bytes.length
    if (size > maxBytes) throw new VerificationError("BODY", `the body has more than ${maxBytes} bytes`)
    parts.push(bytes)
  }
  return concat(...parts)
}

async function concat(...parts: Uint8Array<ArrayBuffer>[]): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await new Blob(parts).arrayBuffer())
}

function decodeBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), character => character.charCodeAt(0))
  } catch {
    return undefined
  }
}

function eventOf<Payload>(header: (name: string) => string | undefined, text: string): HookEvent<Payload> {
  let body: Record<string, unknown> | null
  try {
    body = JSON.parse(text) as Record<string, unknown>
  } catch {
    throw new VerificationError("BODY", "the body is not JSON")
  }
  const event = (id: unknown, type: unknown, ts: unknown, payload: unknown) =>
    ({ ...(typeof id === "string" && { id }), ...(typeof type === "string" && { type }), ...(typeof ts === "string" && { ts }), payload }) as HookEvent<Payload>
  if (header("ce-id")) return event(header("ce-id"), header("ce-type"), header("ce-time"), body)
  const { id, type, ts, time, data, payload } = body ?? {}
  if (/^application\/cloudevents\+json/i.test(header("content-type") ?? "")) return event(id, type, time, data)
  return id !== undefined && type !== undefined && payload !== undefined ? event(id, type, ts, payload) : event(null, null, null, body)
}
