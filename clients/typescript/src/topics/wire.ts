/** Frames of topics: one JSON object, or a binary frame with a JSON header before opaque bytes. */
export interface Frame {
  type: string
  meta?: Record<string, unknown>
  payload?: unknown
}

/** Position in the history of a topic. */
export interface Position {
  epoch: string
  offset: number
}

/** First frame of the server. */
export interface Hello {
  clientId: string
  memberId: string
  session: string
  project: string
  user: string | null
  expiresAt: number | null
  heartbeatMs: number
  limits: {
    topicLength: number
    topicsPerConnection: number
    topicsPerRequest: number
    frameBytes: number
    payloadBytes: number
  }
}

/** Last frame of the server. */
export interface Farewell {
  code: number
  reason: string
  reconnect: boolean
  retryAfterMs?: number
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

/** A frame of the server; of a binary one the payload is a `Uint8Array`. */
export function decode(data: string | ArrayBuffer): Frame & { binary: boolean } {
  if (typeof data === "string") return { ...frame(JSON.parse(data)), binary: false }
  const headerEnd = data.byteLength < 2 ? Infinity : 2 + new DataView(data).getUint16(0)
  if (headerEnd > data.byteLength) throw new TypeError("a binary frame of the server is shorter than its header says")
  const header = frame(JSON.parse(decoder.decode(new Uint8Array(data, 2, headerEnd - 2))))
  return { ...header, payload: new Uint8Array(data, headerEnd), binary: true }
}

function frame(value: unknown): Frame {
  if (typeof value !== "object" || value === null || typeof (value as Frame).type !== "string") {
    throw new TypeError("a frame of the server has no type")
  }
  return value as Frame
}

/** A binary frame: the header's length in two bytes, the header, the bytes. */
export function encodeBinary(header: Frame, bytes: Uint8Array): Uint8Array {
  const text = encoder.encode(JSON.stringify(header))
  if (text.length > 0xffff) throw new RangeError("the header of a binary frame has at most 65,535 bytes")
  const frame = new Uint8Array(2 + text.length + bytes.length)
  new DataView(frame.buffer).setUint16(0, text.length)
  frame.set(text, 2)
  frame.set(bytes, 2 + text.length)
  return frame
}

/** Bytes of a text in UTF-8, without encoding it where that is not needed. */
export function byteLength(text: string, limit: number): number {
  return text.length * 3 <= limit ? text.length : encoder.encode(text).length
}
