/** Frames of topics: one JSON object, or a binary frame with a JSON header before opaque bytes. */
export interface Frame {
  type: string
  meta?: Record<string, unknown>
  payload?: unknown
  /** Whether the payload is bytes. */
  binary?: boolean
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
export function decode(data: string | ArrayBuffer): Frame {
  const binary = typeof data !== "string"
  // A length that is wrong throws a RangeError.
  const headerEnd = binary ? 2 + new DataView(data).getUint16(0) : 0
  const frame = JSON.parse(binary ? decoder.decode(new Uint8Array(data, 2, headerEnd - 2)) : data) as Frame | null
  if (typeof frame?.type !== "string") throw new TypeError("a frame has no type")
  if (binary) frame.payload = new Uint8Array(data, headerEnd)
  frame.binary = binary
  return frame
}

/** A binary frame: the header's length in two bytes, the header, the bytes. */
export function encodeBinary(header: Frame, bytes: Uint8Array): Uint8Array {
  const text = encoder.encode(JSON.stringify(header))
  if (text.length > 0xffff) throw new TypeError("a header of more than 65,535 bytes")
  const frame = new Uint8Array(2 + text.length + bytes.length)
  new DataView(frame.buffer).setUint16(0, text.length)
  frame.set(text, 2)
  frame.set(bytes, 2 + text.length)
  return frame
}

/** Whether a frame has more bytes, in UTF-8, without encoding it where that is not needed. */
export function isLonger(data: string | Uint8Array, limit = Infinity): boolean {
  return data.length * 3 > limit && (typeof data === "string" ? encoder.encode(data) : data).length > limit
}
