import { socketAddress } from "../connection/address.js"
import type { Environment } from "../connection/environment.js"
import { HttpError, isTransient, TidingsError } from "../connection/errors.js"
import { httpError } from "../connection/http.js"
import { Inbox } from "../connection/inbox.js"
import { isCursor, parseMessage, type RoomMessage } from "./event.js"
import { again, failure, type End, type Missed } from "./retry.js"
import { SseParser, type SseItem } from "./sse.js"

/** How events are received: server-sent events by `fetch`, by the browser's `EventSource`, or WebSocket messages. */
export type Wire = "sse" | "eventsource" | "websocket"

/** One item of a stream, the same on every wire. */
export type Item =
  | RoomMessage
  /** A position that was reached without an event. */
  | { kind: "position"; cursor: string }
  | { kind: "retry"; ms: number }
  /** Anything else, which shows that the server is alive. */
  | { kind: "sign" }

/** An open stream. `next` throws a {@link StreamEnd}. */
export interface Stream {
  /** Position at which it begins, if the server says. */
  readonly start: string | undefined
  /** Whether the server's heartbeats can be seen. */
  readonly heartbeats: boolean
  next(): Promise<Item>
  close(): void
}

/** Thrown at the end of a stream. */
export class StreamEnd extends Error {
  constructor(readonly end: End) {
    super(end.kind)
  }
}

export interface Request {
  url: URL
  token: string | null
  cursor: string | undefined
  signal: AbortSignal
}

const PING = '{"type":"ping"}'
/** Interval of pings on a WebSocket, where a page does not see those of the server. */
const PING_MS = 15_000
/** Messages that wait for the handler on a wire that cannot be held back. */
const WAITING_MAX = 5_000

/** Opens a stream after a cursor, or at the head. */
export function openStream(wire: Wire, request: Request, environment: Environment): Promise<Stream> {
  if (wire === "sse") return openSse(request, environment)
  return wire === "websocket" ? openSocket(request, environment) : openEventSource(request, environment)
}

async function openSse({ url, token, cursor, signal }: Request, environment: Environment): Promise<Stream> {
  const response = await ask(withCursor(url, cursor), token, signal, environment)
  await refuseUnlessStream(response, cursor !== undefined, environment)
  const reader = response.body!.getReader()
  const decoder = new TextDecoder()
  const parser = new SseParser()
  let items: SseItem[] = []
  return {
    start: position(response.headers.get("last-event-id")),
    heartbeats: true,
    async next() {
      const item = items.shift()
      if (item) return translate(item)
      // Read only when it is asked for, so that a slow handler slows the server down and not the memory up.
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw new StreamEnd(failure("lost", error))
      })
      if (done) throw new StreamEnd(again("ended"))
      items = malformed(() => parser.feed(decoder.decode(value, { stream: true })))
      return { kind: "sign" }
    },
    close: () => void reader.cancel().catch(() => {}),
  }
}

async function openSocket({ url, token, cursor, signal }: Request, environment: Environment): Promise<Stream> {
  const { WebSocket } = environment
  if (!WebSocket) throw new StreamEnd({ kind: "stop", reason: "no-websocket", error: new TypeError("this platform has no WebSocket") })
  const address = socketAddress(url)
  if (token !== null) address.searchParams.set("token", token)
  const socket = new WebSocket(address.href)
  const inbox = new Inbox<Item>(() => {}, WAITING_MAX)
  let cancelPing = () => {}
  const close = () => {
    cancelPing()
    socket.onmessage = socket.onclose = null
    socket.close(1000)
  }
  const ping = () => {
    cancelPing = environment.clock.after(PING_MS, () => {
      if (socket.readyState === 1) socket.send(PING)
      ping()
    })
  }
  const opened = new Promise<boolean>(resolve => {
    socket.onopen = () => resolve(true)
    socket.onerror = () => resolve(false)
    socket.onclose = ({ code, reason }) => {
      cancelPing()
      resolve(false)
      inbox.end({ error: new StreamEnd(closedWith(code, reason)) })
    }
    signal.addEventListener("abort", () => resolve(false), { once: true })
  })
  socket.onmessage = ({ data }) => inbox.push(take(String(data)))
  if (!(await opened)) {
    close()
    await explain(url, token, signal, environment)
    throw new StreamEnd(failure("lost"))
  }
  // A cursor that is refused here is told in the stream, where a page can see it. The server waits for a first message.
  socket.send(cursor === undefined ? PING : JSON.stringify({ type: "resume", cursor }))
  ping()
  return { start: undefined, heartbeats: true, next: () => nextOf(inbox), close }

  function take(data: string): Item {
    try {
      return parseMessage(undefined, data) ?? { kind: "sign" }
    } catch (error) {
      close()
      inbox.end({ error: new StreamEnd(failure("malformed", error)) })
      return { kind: "sign" }
    }
  }
}

async function openEventSource({ url, token, cursor, signal }: Request, environment: Environment): Promise<Stream> {
  const address = withCursor(url, cursor)
  if (token !== null) address.searchParams.set("token", token)
  const source = new EventSource(address.href)
  const inbox = new Inbox<Item>(() => {}, WAITING_MAX)
  const close = () => source.close()
  const opened = await new Promise<boolean>(resolve => {
    source.onopen = () => resolve(true)
    // It would connect again by itself, without a wait, a new token, or a sign of what was missed.
    source.onerror = () => {
      close()
      resolve(false)
      inbox.end({ error: new StreamEnd(again("ended")) })
    }
    for (const type of ["messageEvent", "reactionEvent", "typingEvent", "infoEvent"]) {
      source.addEventListener(type, event => {
        try {
          inbox.push(parseMessage(type, (event as MessageEvent<string>).data) ?? { kind: "sign" })
        } catch (error) {
          close()
          inbox.end({ error: new StreamEnd(failure("malformed", error)) })
        }
      })
    }
    signal.addEventListener("abort", () => resolve(false), { once: true })
  })
  if (!opened) {
    close()
    await explain(withCursor(url, cursor), token, signal, environment, cursor !== undefined)
    throw new StreamEnd(failure("lost"))
  }
  return { start: undefined, heartbeats: false, next: () => nextOf(inbox), close }
}

async function nextOf(inbox: Inbox<Item>): Promise<Item> {
  try {
    const { done, value } = await inbox.next()
    if (!done) return value
  } catch (error) {
    // Too many messages waited; they come again after a reconnect.
    throw error instanceof StreamEnd ? error : new StreamEnd(again("overflow", error))
  }
  throw new StreamEnd(again("ended"))
}

/** A wire that hides why it was refused: the same request by `fetch` is refused in the same way. */
async function explain(url: URL, token: string | null, signal: AbortSignal, environment: Environment, hadCursor = false): Promise<void> {
  if (signal.aborted) return
  const controller = new AbortController()
  const abort = () => controller.abort()
  signal.addEventListener("abort", abort)
  try {
    await refuseUnlessStream(await ask(url, token, controller.signal, environment), hadCursor, environment)
  } finally {
    signal.removeEventListener("abort", abort)
    controller.abort()
  }
}

async function ask(url: URL, token: string | null, signal: AbortSignal, environment: Environment): Promise<Response> {
  try {
    return await environment.fetch(url.href, {
      headers: { accept: "text/event-stream", ...(token !== null && { authorization: `Bearer ${token}` }) },
      cache: "no-store",
      // The token is for the configured server. A redirect is refused like any other answer that is no stream.
      redirect: "manual",
      signal,
    })
  } catch (error) {
    throw new StreamEnd(failure("lost", error))
  }
}

async function refuseUnlessStream(response: Response, hadCursor: boolean, environment: Environment): Promise<void> {
  const { status } = response
  if (status === 200 && /^text\/event-stream/i.test(response.headers.get("content-type") ?? "") && response.body) return
  const error = await httpError(response, environment.clock.now())
  throw new StreamEnd(refused(error, hadCursor))
}

/** What a response means that is not a stream. */
function refused(error: HttpError, hadCursor: boolean): End {
  const { status, retryAfterMs } = error
  if (status === 401) return { kind: "unauthorized", error }
  if (status === 403) return { kind: "stop", reason: "forbidden", error }
  if (status === 409) return again("slow-consumer", error, retryAfterMs)
  if (status === 410) return { kind: "gone", missed: missed(error.code, error.details), hadCursor, retryAfterMs }
  // A success that is not a stream comes from something between, such as a proxy's page.
  if (isTransient(status) || (status >= 200 && status < 300)) return failure("unavailable", error, retryAfterMs)
  return { kind: "stop", reason: "refused", error }
}

/** Meaning of a WebSocket's close code. */
function closedWith(code: number, reason: string): End {
  switch (code) {
    case 1000:
    case 1001:
      return again("ended")
    case 1012:
      return again("server-restart")
    case 4401:
      return { kind: "unauthorized", error: new TidingsError("TokenExpired", reason || "the token has expired") }
    case 4403:
      return { kind: "stop", reason: "forbidden", error: new TidingsError("NotMember", reason || "no longer a member of the room") }
    case 4409:
      return again("slow-consumer")
    case 4410:
      return { kind: "gone", missed: missed(reason, {}), hadCursor: true }
    default:
      return failure("lost", new TidingsError("LOST", `the WebSocket was closed with ${code} ${reason}`, { retryable: true }))
  }
}

/** Which events are gone. */
export function missed(name: string, detail: Readonly<Record<string, unknown>>): Missed {
  return { name, floor: position(detail.floor), oldest: position(detail.oldest), head: position(detail.head) }
}

function translate(item: SseItem): Item {
  if (item.kind === "event") return malformed(() => parseMessage(item.name, item.data)) ?? { kind: "sign" }
  if (item.kind === "retry") return item
  // An id that is not a cursor is not a position.
  return isCursor(item.id) ? { kind: "position", cursor: item.id } : { kind: "sign" }
}

function malformed<T>(parse: () => T): T {
  try {
    return parse()
  } catch (error) {
    throw new StreamEnd(failure("malformed", error))
  }
}

function position(value: unknown): string | undefined {
  return isCursor(value) ? value : undefined
}

function withCursor(url: URL, cursor: string | undefined): URL {
  const asked = new URL(url)
  if (cursor !== undefined) asked.searchParams.set("cursor", cursor)
  return asked
}
