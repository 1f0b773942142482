import type { Environment } from "../connection/environment.js"
import { HttpError, TidingsError, TimeoutError } from "../connection/errors.js"
import type { Http } from "../connection/http.js"
import { isPassing, retrying } from "../connection/retrying.js"

/** An event to be written. */
export interface NewEvent {
  type: "messageEvent" | "reactionEvent" | "typingEvent" | (string & {})
  payload: object
}

/** What became of a written event. */
export interface Written {
  cursor: string
  emittedAt: string
}

/** Writes that wait for the one before. */
const QUEUE_MAX = 1_000
/** Time after which a write is given up. */
const WRITE_TIMEOUT_MS = 30_000

/**
 * Writes events to a room, one request after the other. A request that fails on the way is repeated under its number, and the
 * server stores it once.
 */
export class Writer {
  readonly #http: Http
  readonly #segments: string[]
  readonly #environment: Environment
  #producer: { id: string; next: number } | undefined
  #tail: Promise<unknown> = Promise.resolve()
  #queued = 0

  constructor(http: Http, room: string, environment: Environment) {
    this.#http = http
    this.#segments = ["rooms", room, "events"]
    this.#environment = environment
  }

  /** Writes events atomically, in the order of the calls. */
  _write(events: NewEvent | NewEvent[], { signal, timeoutMs = WRITE_TIMEOUT_MS }: { signal?: AbortSignal; timeoutMs?: number } = {}): Promise<Written[]> {
    const list = Array.isArray(events) ? events : [events]
    // The server does not number typing events: they are worth nothing when they are late.
    if (list.some(event => event.type === "typingEvent")) return this.#post(list, {}, signal)
    if (this.#queued >= QUEUE_MAX) {
      return Promise.reject(new TidingsError(`${QUEUE_MAX} writes wait`, { code: "BACKPRESSURE", retryable: true }))
    }
    this.#queued++
    const written = this.#tail.then(() => this.#numbered(list, signal, this.#environment.clock.now() + timeoutMs))
    this.#tail = written.catch(() => {}).then(() => void this.#queued--)
    return written
  }

  async #numbered(events: NewEvent[], signal: AbortSignal | undefined, until: number): Promise<Written[]> {
    const producer = (this.#producer ??= { id: randomId(), next: 0 })
    const headers = { "producer-id": producer.id, "producer-epoch": "0", "producer-seq": String(producer.next) }
    const attempt = async () => {
      signal?.throwIfAborted()
      return this.#post(events, headers, signal)
    }
    try {
      const written = await retrying(this.#environment, attempt, delay => this.#environment.clock.now() + delay <= until, signal)
      producer.next++
      return written
    } catch (error) {
      // It may have been written: its number must not be used for anything else. Or the server refuses the number: it knows it
      // from before and not what it answered, or it is not the next one.
      const refused = error instanceof HttpError && !error.retryable
      if (!refused || error.code.startsWith("Producer")) this.#producer = undefined
      throw isPassing(error) && !(error instanceof HttpError) ? new TimeoutError("the write was not answered; it may have taken effect") : error
    }
  }

  async #post(events: NewEvent[], headers: Record<string, string>, signal: AbortSignal | undefined): Promise<Written[]> {
    const body = events.length === 1 ? events[0] : events
    const written = await this.#http._json<Written | Written[]>("POST", this.#segments, { body, headers, signal })
    return Array.isArray(written) ? written : [written]
  }
}

/** An id that nobody else draws. `randomUUID` is missing in pages without HTTPS. */
function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, "0")).join("")
}
