import { Backoff } from "../connection/backoff.js"
import type { ConnectionState, Ending } from "../connection/connection.js"
import { ConnectionClosedError, TidingsError } from "../connection/errors.js"
import { call } from "../connection/listeners.js"
import { guardedFetch } from "./guarded-fetch.js"
import type { Session, SessionParts } from "./sessions.js"

/** A message of a stream that is subscribed to with `envelope`. */
export interface Envelope<Payload = unknown> {
  stream: string
  /** Offset in the source after the message. */
  offset: string
  /** Time of the publication, in milliseconds. */
  ts: number
  payload: Payload
}

/** What a reader of a session is told. Messages wait for the promise of the batch before. */
export interface SessionHandlers {
  /** Messages by their stream, for streams that are subscribed to with `envelope`. */
  streams?: Record<string, (message: Envelope<any>) => unknown>
  /** All other messages, as they are. */
  message?(message: unknown): unknown
  /** Where the next reader resumes: all before it has been handled. */
  offset?(offset: string): unknown
  /** The session had expired and was made again: what was published meanwhile is missed. */
  expired?(): unknown
  state?(state: ConnectionState): unknown
}

export interface FollowOptions {
  /** Where to begin. Default: `-1`, the beginning. */
  offset?: string
  /** Default: `sse`. */
  live?: "sse" | "long-poll"
  signal?: AbortSignal
}

/** A reader of a session. */
export interface Following {
  readonly state: ConnectionState
  /** Where the next reader resumes. */
  readonly offset: string
  /** Resolves when the reader was closed; rejects if it could not go on. */
  readonly done: Promise<void>
  close(): void
}

/** The server ends a response after a minute, so one that is silent for longer is dead. */
const SILENCE_MS = 75_000

/** Reads the session's stream with `@durable-streams/client`, and comes again where that gives up. */
export class Reader implements Following {
  state: ConnectionState = { status: "idle" }
  offset: string
  readonly done: Promise<void>
  readonly #session: Session
  readonly #parts: SessionParts
  readonly #handlers: SessionHandlers
  readonly #live: "sse" | "long-poll"
  readonly #stopping = new AbortController()
  #wake = () => {}

  constructor(session: Session, parts: SessionParts, handlers: SessionHandlers, options: FollowOptions) {
    this.#session = session
    this.#parts = parts
    this.#handlers = handlers
    this.#live = options.live ?? "sse"
    this.offset = options.offset ?? "-1"
    const signals = [options.signal, parts.signal].filter(signal => signal !== undefined)
    const close = () => this.close()
    for (const signal of signals) signal.addEventListener("abort", close, { once: true })
    if (signals.some(signal => signal.aborted)) close()
    this.done = this.#run()
    this.done.catch(() => {})
  }

  close(): void {
    this.#stopping.abort()
    this.#wake()
  }

  async #run(): Promise<void> {
    const { environment } = this.#parts
    const backoff = new Backoff(environment.random)
    const unwake = environment.wake(() => this.#wake())
    let why: Ending = { reason: "closed", reconnect: false }
    let refused = 0
    while (!this.#stopping.signal.aborted) {
      this.#set({ status: "connecting" })
      const began = environment.clock.now()
      const ended = await this.#once(refused > 0)
      if (this.#stopping.signal.aborted) break
      const lasted = environment.clock.now() - began
      backoff.lasted(lasted)
      refused = ended.tokenRefused ? refused + 1 : 0
      if (!ended.reconnect || refused > 1) {
        why = { ...ended, reconnect: false }
        break
      }
      await this.#wait(backoff.next(ended.retryAfterMs), ended)
    }
    unwake()
    this.#set({ status: "closed", why })
    if (why.reason !== "closed") throw why.error ?? new ConnectionClosedError(`the session cannot be read: ${why.reason}`)
  }

  /** Reads until the response ends or fails. */
  async #once(refused: boolean): Promise<Ending> {
    const { environment, http, token } = this.#parts
    const giveUp = new AbortController()
    const stop = () => giveUp.abort()
    this.#stopping.signal.addEventListener("abort", stop, { once: true })
    try {
      const { stream } = await import("@durable-streams/client")
      const bearer = await token.get(refused ? "refused" : "connect")
      const response = await stream<unknown>({
        url: http.url(["stream", this.#session.id]).href,
        offset: this.offset,
        live: this.#live,
        json: true,
        headers: bearer === null ? {} : { authorization: `Bearer ${bearer}` },
        fetch: guardedFetch(environment, SILENCE_MS),
        signal: giveUp.signal,
        // This reader waits and comes again by its own rules, which know the server's.
        backoffOptions: { initialDelay: 0, maxDelay: 0, multiplier: 1, maxRetries: 0 },
        warnOnHttp: false,
      })
      this.#set({ status: "connected" })
      let failed: { error: unknown } | undefined
      response.subscribeJson(async batch => {
        if (giveUp.signal.aborted) return
        try {
          for (const item of batch.items) await this.#deliver(item)
        } catch (error) {
          failed = { error }
          giveUp.abort()
          return
        }
        this.offset = batch.offset
        call(this.#handlers.offset?.bind(this.#handlers), batch.offset, environment.report)
      })
      await response.closed.catch((error: unknown) => {
        if (!failed) throw error
      })
      if (failed) return { reason: "handler", reconnect: false, error: failed.error }
      return response.streamClosed ? { reason: "stream-closed", reconnect: false } : { reason: "ended", reconnect: true }
    } catch (error) {
      return this.#failed(error)
    } finally {
      this.#stopping.signal.removeEventListener("abort", stop)
      giveUp.abort()
    }
  }

  async #failed(error: unknown): Promise<Ending> {
    const status = (error as { status?: number }).status
    const code = status === undefined ? {} : { code: status }
    if (status === 404) {
      try {
        await this.#session.restore()
      } catch (cause) {
        const gone = cause instanceof TidingsError && !cause.retryable
        return { reason: gone ? "not-found" : "lost", reconnect: !gone, error: cause, ...code }
      }
      this.offset = "-1"
      call(() => this.#handlers.expired?.(), undefined, this.#parts.environment.report)
      return { reason: "expired", reconnect: true, error, ...code }
    }
    if (status === 401) return { reason: "token-refused", reconnect: this.#parts.token.renewable, tokenRefused: true, error, ...code }
    const final = status !== undefined && status >= 400 && status < 500 && ![408, 409, 425, 429].includes(status)
    return { reason: final ? "refused" : "lost", reconnect: !final, error, ...code }
  }

  async #deliver(item: unknown): Promise<void> {
    const { streams } = this.#handlers
    const envelope = item as Envelope | null
    const handler = typeof envelope === "object" && envelope !== null && typeof envelope.stream === "string" ? streams?.[envelope.stream] : undefined
    await (handler ? handler(envelope!) : this.#handlers.message?.(item))
  }

  async #wait(ms: number, why: Ending): Promise<void> {
    const { clock } = this.#parts.environment
    this.#set({ status: "waiting", why, retryAt: clock.now() + ms })
    await new Promise<void>(resolve => {
      const cancel = clock.after(ms, resolve)
      this.#wake = () => {
        cancel()
        resolve()
      }
      if (this.#stopping.signal.aborted) this.#wake()
    })
    this.#wake = () => {}
  }

  #set(state: ConnectionState): void {
    this.state = state
    call(this.#handlers.state?.bind(this.#handlers), state, this.#parts.environment.report)
  }
}
