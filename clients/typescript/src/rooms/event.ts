/** An event of a room. */
export interface RoomEvent {
  /** `messageEvent`, `reactionEvent`, `typingEvent`, or a type that this version does not know. */
  readonly type: string
  /** Position of the event. To be stored, sent back and compared for equality, and for nothing else. */
  readonly cursor: string
  readonly room: string
  /** Time of the write, RFC 3339. */
  readonly emittedAt: string
  readonly payload: unknown
}

/** A notice of the server about the stream itself. */
export interface RoomInfo {
  readonly reason: "compacted" | "reset" | "slow-consumer" | "server-restart" | "membership-revoked" | "token-expired" | "caught-up"
  /** Cursor to resume from, if the notice has one. */
  readonly cursor: string | undefined
  readonly detail: Readonly<Record<string, unknown>>
}

/** Types of events that this version knows. */
export const EVENTS = ["messageEvent", "reactionEvent", "typingEvent"]
const REASONS = new Set(["compacted", "reset", "slow-consumer", "server-restart", "membership-revoked", "token-expired", "caught-up"])

export type RoomMessage = { kind: "event"; event: RoomEvent } | { kind: "info"; info: RoomInfo }

/** A cursor is 1 to 64 letters and digits; it goes into URLs and storage. */
export function isCursor(text: unknown): text is string {
  return typeof text === "string" && /^[0-9A-Za-z]{1,64}$/.test(text)
}

interface Form {
  type?: string
  cursor?: unknown
  convoId?: string
  emittedAt?: string
  payload?: Record<string, unknown> | null
  reason?: string
  detail?: Record<string, unknown> | null
}

/**
 * Reads a message. With server-sent events its type is the event's name, on a WebSocket it is in the JSON. Undefined for what
 * is to be ignored: reasons that are not known, and messages of other types without a cursor. Throws for what is malformed.
 */
export function parseMessage(name: string | undefined, json: string): RoomMessage | undefined {
  const form = JSON.parse(json) as Form
  const type = name ?? form.type ?? ""
  const cursor = isCursor(form.cursor) ? form.cursor : undefined
  if (type === "infoEvent") {
    const reason = form.reason ?? String(form.payload?.reason)
    if (!REASONS.has(reason)) return undefined
    const detail = (form.detail ?? form.payload?.detail ?? {}) as Record<string, unknown>
    return { kind: "info", info: { reason: reason as RoomInfo["reason"], cursor, detail } }
  }
  if (cursor === undefined) {
    if (EVENTS.includes(type)) throw new TypeError(`an event of type ${type} has no valid cursor`)
    return undefined
  }
  return { kind: "event", event: { type, cursor, room: form.convoId ?? "", emittedAt: form.emittedAt ?? "", payload: form.payload } }
}

/** `retryAfter` of a detail, in milliseconds. */
export function retryAfterOf(detail: RoomInfo["detail"]): number | undefined {
  const seconds = Number(detail.retryAfter)
  return seconds >= 0 ? seconds * 1000 : undefined
}
