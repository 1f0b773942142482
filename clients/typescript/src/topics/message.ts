/** A message that was published to a topic. */
export interface Message<Payload = unknown, Type extends string = string> {
  readonly type: Type
  readonly topic: string
  /** JSON, or a `Uint8Array` if the message was published as bytes. */
  readonly payload: Payload
  /** What the publisher and the server say beside the payload. */
  readonly meta: Readonly<Record<string, unknown>>
  /** Whether the payload is bytes. */
  readonly binary: boolean
}

/** What is published. A payload of bytes is sent as they are; any other one as JSON. */
export interface Outgoing {
  type: string
  meta?: Record<string, unknown>
  payload?: unknown
}

/** Options of a publish. */
export interface PublishOptions {
  /** The publishing client does not receive the message, on this connection or a later one. */
  excludeSelf?: boolean
  partitionKey?: string
  /** Longest time to wait for a connection. Default: 10 s. */
  timeoutMs?: number
  signal?: AbortSignal
}

export type PublishCapability = "exact" | "estimate" | "unknown"

export type PublishErrorCode =
  | "VALIDATION"
  | "ACL_PUBLISH"
  | "STATE"
  | "BACKPRESSURE"
  | "PAYLOAD_TOO_LARGE"
  | "UNSUPPORTED"
  | "ADAPTER_ERROR"
  | "CONNECTION_CLOSED"

/** Outcome of a publish, which never throws. */
export type PublishResult =
  | {
      ok: true
      capability: PublishCapability
      /** Connections that the message was for; absent if that is not known. */
      matched?: number
      /** Position in the topic's history, if it has one. */
      epoch?: string
      offset?: number
    }
  | {
      ok: false
      error: PublishErrorCode
      /** Whether it may be published again. After CONNECTION_CLOSED the message may have been published all the same. */
      retryable: boolean
      adapter?: string
      details?: Record<string, unknown>
      cause?: unknown
    }

/** A member of a topic's presence. */
export interface Member {
  id: string
  user?: string | null
  info?: unknown
  since: number
}

/** Who is present. */
export interface Presence {
  members: Member[]
  count: number
  capability: PublishCapability
}

/** Someone came or went. */
export interface PresenceChange {
  kind: "join" | "leave"
  topic: string
  member: Member
}

/** Outcome of a verification with the server's message bus. */
export type VerifyResult =
  | { kind: "subscribed" | "unsubscribed" | "unsupported" | "timeout"; local?: boolean }
  | { kind: "error"; cause: unknown }

/** Bytes of a payload, if it is bytes. */
export function bytesOf(payload: unknown): Uint8Array | undefined {
  if (payload instanceof ArrayBuffer) return new Uint8Array(payload)
  if (ArrayBuffer.isView(payload)) return new Uint8Array(payload.buffer, payload.byteOffset, payload.byteLength)
  return undefined
}
