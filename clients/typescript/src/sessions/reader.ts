import { onAbort } from "../connection/abort.js"
import { Backoff, retryAfterMs } from "../connection/backoff.js"
import type { ConnectionState, Ending } from "../connection/connection.js"
import { isTransient, type TidingsError } from "../connection/errors.js"
import { Follower, type Following, type Step } from "../connection/follower.js"
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
export interface FollowingSession extends Following {
  /** Where the next reader resumes. */
  readonly offset: string
}

/** The server ends a response after a minute, so one that is silent for longer is dead. */
const SILENCE_MS = 75_000

/** Reads the session's stream with `@durable-streams/client`, and comes again where that gives up. */
export class Reader extends Follower implements FollowingSession {
  offset: string
  readonly #session: Session
  readonly #parts: SessionParts
  readonly #handlers: SessionHandlers
  readonly #live: "sse" | "long-poll"
  readonly #backoff: Backoff
  #refused = 0

  constructor(session: Session, parts: SessionParts, handlers: SessionHandlers, { live = "sse", offset = "-1" }: FollowOptions) {
    super(parts.environment, state => handlers.state?.(state))
    this.#session = session
    this.#parts = parts
    this.#handlers = handlers
    this.#live = live
    this.#backoff = new Backoff(parts.environment.random)
    this.offset = offset
  }

  protected async _once(): Promise<Step> {
    const { clock } = this._environment
    const began = clock.now()
    const why = await this.#read()
    this.#backoff._lasted(clock.now() - began)
    this.#refused = why.tokenRefused ? this.#refused + 1 : 0
    // A second refusal in a row is final.
    const reconnect = why.reconnect && this.#refused < 2
    return { why: { ...why, reconnect }, ms: this.#backoff._next(why.retryAfterMs), _floorMs: why.retryAfterMs ?? 0 }
  }

  /** Reads until the response ends or fails. */
  async #read(): Promise<Ending> {
    const { http, token } = this.#parts
    const { _environment: environment } = this
    const giveUp = new AbortController()
    const forget = onAbort(this._closing.signal, () => giveUp.abort())
    try {
      const { stream } = await import("@durable-streams/client")
      const bearer = await token._get(this.#refused ? "refused" : "connect")
      const response = await stream<unknown>({
        url: http._url(["stream", this.#session.id]).href,
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
      this._set({ status: "connected" })
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
        call(() => this.#handlers.offset?.(batch.offset), environment.report)
      })
      await response.closed.catch((error: unknown) => {
        if (!failed) throw error
      })
      if (failed) return { reason: "handler", reconnect: false, error: failed.error }
      return response.streamClosed ? { reason: "stream-closed", reconnect: false } : { reason: "ended", reconnect: true }
    } catch (error) {
      return this.#failed(error)
    } finally {
      forget()
      giveUp.abort()
    }
  }

  async #failed(error: unknown): Promise<Ending> {
    const { status: code, headers } = error as { status?: number; headers?: Record<string, string> }
    if (code === 404) {
      try {
        await this.#session._restore()
      } catch (cause) {
        const { retryable = true, retryAfterMs } = cause as Partial<TidingsError>
        return { reason: retryable ? "lost" : "not-found", reconnect: retryable, retryAfterMs, error: cause, code }
      }
      this.offset = "-1"
      call(() => this.#handlers.expired?.(), this._environment.report)
      return { reason: "expired", reconnect: true, error, code }
    }
    if (code === 401) return { reason: "token-refused", reconnect: this.#parts.token._renewable, tokenRefused: true, error, code }
    const final = code !== undefined && code >= 400 && code !== 409 && !isTransient(code)
    return { reason: final ? "refused" : "lost", reconnect: !final, retryAfterMs: retryAfterMs(headers?.["retry-after"] ?? null, this._environment.clock.now()), error, code }
  }

  async #deliver(item: unknown): Promise<void> {
    const { streams } = this.#handlers
    const envelope = item as Envelope | null
    const handler = typeof envelope === "object" && envelope !== null && typeof envelope.stream === "string" ? streams?.[envelope.stream] : undefined
    await (handler ? handler(envelope!) : this.#handlers.message?.(item))
  }
}
