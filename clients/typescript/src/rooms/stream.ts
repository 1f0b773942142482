import { onAbort } from "../connection/abort.js"
import { socketAddress } from "../connection/address.js"
import { NO_WEBSOCKET } from "../connection/connection.js"
import type { Environment } from "../connection/environment.js"
import { HttpError, isTransient, TidingsError } from "../connection/errors.js"
import { httpError } from "../connection/http.js"
import { Inbox } from "../connection/inbox.js"
import { EVENTS, isCursor, parseMessage, type RoomMessage } from "./event.js"
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
  readonly _heartbeats: boolean
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

const SIGN = { kind: "sign" } as const
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
  const response = await ask(withQuery(url, "cursor", cursor), token, signal, environment)
  await refuseUnlessStream(response, cursor !== undefined, environment)
  const reader = response.body!.getReader()
  const decoder = new TextDecoder()
  const parser = new SseParser()
  let items: SseItem[] = []
  return {
    start: position(response.headers.get("last-event-id")),
    _heartbeats: true,
    async next() {
      const item = items.shift()
      if (item) return translate(item)
      // Read only when it is asked for, so that a slow handler slows the server down and not the memory up.
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw new StreamEnd(failure("lost", error))
      })
      if (done) throw new StreamEnd(again("ended"))
      items = malformed(() => parser.feed(decoder.decode(value, { stream: true })))
      return SIGN
    },
    close: () => void reader.cancel().catch(() => {}),
  }
}

/** Where a wire that pushes hands over what it gets. */
interface Sink {
  _opened(yes: boolean): void
  /** Takes a message; on server-sent events its type is beside it. */
  _take(name: string | undefined, data: string): void
  end(how: End): void
}

function openSocket(request: Request, environment: Environment): Promise<Stream> {
  const { WebSocket, clock } = environment
  if (!WebSocket) throw new StreamEnd({ kind: "stop", reason: "no-websocket", error: new TypeError(NO_WEBSOCKET) })
  const { url, token, cursor } = request
  return openPushed(request, url, false, environment, sink => {
    const socket = new WebSocket(withQuery(socketAddress(url), "token", token).href)
    let cancelPing = () => {}
    const ping = () => {
      cancelPing = clock.after(PING_MS, () => {
        if (socket.readyState === 1) socket.send(PING)
        ping()
      })
    }
    socket.onopen = () => {
      // A cursor that is refused here is told in the stream, where a page can see it. The server waits for a first message.
      socket.send(cursor === undefined ? PING : JSON.stringify({ type: "resume", cursor }))
      ping()
      sink._opened(true)
    }
    // Some platforms do not tell the end of a handshake that failed.
    socket.onerror = () => sink._opened(false)
    socket.onmessage = ({ data }) => sink._take(undefined, String(data))
    socket.onclose = ({ code, reason }) => sink.end(closedWith(code, reason))
    return () => {
      cancelPing()
      socket.onopen = socket.onmessage = socket.onclose = null
      socket.close(1000)
    }
  })
}

function openEventSource(request: Request, environment: Environment): Promise<Stream> {
  const url = withQuery(request.url, "cursor", request.cursor)
  return openPushed(request, url, true, environment, sink => {
    const source = new EventSource(withQuery(url, "token", request.token).href)
    source.onopen = () => sink._opened(true)
    // It would connect again by itself, without a wait, a new token, or a sign of what was missed.
    source.onerror = () => sink.end(again("ended"))
    for (const type of [...EVENTS, "infoEvent"]) source.addEventListener(type, event => sink._take(type, (event as MessageEvent<string>).data))
    return () => source.close()
  })
}

/** Opens a wire that pushes its messages, and hides why it was refused: the same request by `fetch` is refused in the same way. */
async function openPushed(
  { token, cursor, signal }: Request,
  url: URL,
  source: boolean,
  environment: Environment,
  connect: (sink: Sink) => () => void,
): Promise<Stream> {
  const inbox = new Inbox<Item>(() => {}, WAITING_MAX)
  let close = () => {}
  const opened = await new Promise<boolean>(resolve => {
    const end = (how: End) => {
      close()
      resolve(false)
      inbox.end({ error: new StreamEnd(how) })
    }
    const take = (name: string | undefined, data: string) => {
      try {
        inbox.push(parseMessage(name, data) ?? SIGN)
      } catch (error) {
        end(failure("malformed", error))
      }
    }
    close = connect({ _opened: resolve, _take: take, end })
    onAbort(signal, () => resolve(false))
  })
  if (!opened) {
    close()
    if (!signal.aborted) {
      const asking = new AbortController()
      const forget = onAbort(signal, () => asking.abort())
      try {
        await refuseUnlessStream(await ask(url, token, asking.signal, environment), source && cursor !== undefined, environment)
      } finally {
        forget()
        asking.abort()
      }
    }
    throw new StreamEnd(failure("lost"))
  }
  return {
    start: undefined,
    _heartbeats: !source,
    async next() {
      const { value } = await inbox.next().catch((error: unknown) => {
        // Too many messages waited; they come again after a reconnect.
        throw error instanceof StreamEnd ? error : new StreamEnd(again("overflow", error))
      })
      if (value) return value as Item
      throw new StreamEnd(again("ended"))
    },
    close,
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
function closedWith(status: number, reason: string): End {
  const error = (code: string) => new TidingsError(`the WebSocket was closed with ${status} ${reason}`, { code })
  switch (status) {
    case 1000:
    case 1001:
      return again("ended")
    case 1012:
      return again("server-restart")
    case 4401:
      return { kind: "unauthorized", error: error("TokenExpired") }
    case 4403:
      return { kind: "stop", reason: "forbidden", error: error("NotMember") }
    case 4409:
      return again("slow-consumer")
    case 4410:
      return { kind: "gone", missed: missed(reason, {}), hadCursor: true }
    default:
      return failure("lost", error("LOST"))
  }
}

/** Which events are gone. */
export function missed(name: string, detail: Readonly<Record<string, unknown>>): Missed {
  return { name, floor: position(detail.floor), oldest: position(detail.oldest), head: position(detail.head) }
}

function translate(item: SseItem): Item {
  if (item.kind === "event") return malformed(() => parseMessage(item.name, item.data)) ?? SIGN
  if (item.kind === "retry") return item
  // An id that is not a cursor is not a position.
  return isCursor(item.id) ? { kind: "position", cursor: item.id } : SIGN
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

function withQuery(url: URL, name: string, value: string | null | undefined): URL {
  const asked = new URL(url)
  if (value != null) asked.searchParams.set(name, value)
  return asked
}
