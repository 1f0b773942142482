import { onAbort } from "../connection/abort.js"
import type { Target } from "../connection/address.js"
import type { Environment } from "../connection/environment.js"
import { Http } from "../connection/http.js"
import { iterate } from "../connection/iterate.js"
import { parts, type Parts } from "../connection/parts.js"
import type { TokenProvider } from "../connection/token.js"
import { Reader, type FollowingSession, type FollowOptions, type SessionHandlers } from "./reader.js"

export interface SessionsOptions extends Target {
  token?: TokenProvider
  /** Closes all readers. */
  signal?: AbortSignal
  environment?: Partial<Environment>
}

/** A session as the server shows it. */
export interface SessionStatus {
  sessionId: string
  sessionStreamPath: string
  /** In milliseconds since 1970. */
  expiresAt: number
  contentType: string
  subscriptions: { streamId: string; subscribedAt: number; envelope: boolean }[]
}

/** Answer to a subscribe. */
export interface Subscribed {
  sessionId: string
  streamId: string
  sessionStreamPath: string
  expiresAt: number
  isNewSession: boolean
}

/** What a publish has delivered. */
export interface Published {
  /** Offset after the message. */
  nextOffset: string
  mode: "inline" | "queued" | "circuit-open" | "skipped" | (string & {})
  /** Subscribers, and deliveries made before the answer. */
  count: number
  successes: number
  failures: number
}

/** What sessions and their readers share. */
export interface SessionParts extends Parts {
  http: Http
  signal: AbortSignal | undefined
}

/** Sessions of a project. */
export class Sessions {
  readonly #parts: SessionParts
  readonly #sessions = new Map<string, Session>()

  constructor(options: SessionsOptions) {
    const shared = parts(options)
    this.#parts = { ...shared, http: new Http(options, shared), signal: options.signal }
  }

  /** A session; always the same object for the same id. It exists on the server from its first subscription on. */
  session(id: string): Session {
    let session = this.#sessions.get(id)
    if (!session) this.#sessions.set(id, (session = new Session(id, this.#parts)))
    return session
  }

  /** Publishes to a stream and to all sessions that subscribe to it. */
  async publish(streamId: string, body: unknown, { headers = {}, signal }: { headers?: Record<string, string>; signal?: AbortSignal } = {}): Promise<Published> {
    const answer = await this.#parts.http._send("POST", ["publish", streamId], { body, headers, signal })
    const count = (name: string) => Number(answer.headers.get(`stream-fanout-${name}`) ?? 0)
    return {
      nextOffset: answer.headers.get("stream-next-offset") ?? "",
      mode: answer.headers.get("stream-fanout-mode") ?? "",
      count: count("count"),
      successes: count("successes"),
      failures: count("failures"),
    }
  }
}

/** Shortest and longest time between touches. */
const TOUCH_MS = [10_000, 300_000] as const

/** A session: subscribe it to streams, read what they receive, keep it alive. */
export class Session {
  readonly id: string
  readonly #parts: SessionParts
  /** What it is subscribed to by this client, so that a session that has expired can be made again. */
  readonly #wanted = new Map<string, boolean | undefined>()
  #expiresAt = 0

  constructor(id: string, parts: SessionParts) {
    this.id = id
    this.#parts = parts
  }

  /** Subscribes to a stream. With `envelope` each message says which stream it is from. Repeating it changes nothing else. */
  async subscribe(streamId: string, { envelope, signal }: { envelope?: boolean; signal?: AbortSignal } = {}): Promise<Subscribed> {
    const subscribed = await this.#subscribe(streamId, envelope, signal)
    this.#wanted.set(streamId, envelope)
    return subscribed
  }

  async unsubscribe(streamId: string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    this.#wanted.delete(streamId)
    await this.#parts.http._json("DELETE", ["unsubscribe"], { body: { sessionId: this.id, streamId }, signal })
  }

  /** What the server knows of it. Does not keep it alive. */
  get({ signal }: { signal?: AbortSignal } = {}): Promise<SessionStatus> {
    return this.#parts.http._json("GET", ["session", this.id], { signal })
  }

  /** Keeps it alive for another while. */
  async touch({ signal }: { signal?: AbortSignal } = {}): Promise<{ sessionId: string; expiresAt: number }> {
    const touched = await this.#parts.http._json<{ sessionId: string; expiresAt: number }>("POST", ["session", this.id, "touch"], { signal })
    this.#expiresAt = touched.expiresAt
    return touched
  }

  /** Removes it, its stream and its subscriptions. */
  async delete({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    this.#wanted.clear()
    await this.#parts.http._json("DELETE", ["session", this.id], { signal })
  }

  /**
   * Touches it regularly, for a page that does not read it all the time; a reader keeps it alive by itself. If it has expired
   * all the same, it is made again with its subscriptions, and `expired` is called: what was published meanwhile is missed.
   */
  keepAlive({ expired, signal }: { expired?: () => unknown; signal?: AbortSignal } = {}): () => void {
    const { clock, report } = this.#parts.environment
    let cancel = () => {}
    let ended = false
    const stop = () => {
      ended = true
      cancel()
    }
    const touch = async () => {
      try {
        await this.touch()
      } catch (error) {
        if ((error as { status?: number }).status === 404) {
          await this._restore().then(() => expired?.()).catch(report)
        }
        // Anything else may pass until the next time.
      }
      if (!ended) schedule()
    }
    const schedule = () => {
      const third = (this.#expiresAt - clock.now()) / 3
      cancel = clock.after(Math.min(Math.max(third, TOUCH_MS[0]), TOUCH_MS[1]), () => void touch())
    }
    schedule()
    onAbort(signal, stop)
    return stop
  }

  /** @internal Subscribes again to all that this client has subscribed it to. */
  async _restore(): Promise<void> {
    for (const [streamId, envelope] of this.#wanted) await this.#subscribe(streamId, envelope)
  }

  /** Reads the session: what was delivered after the offset, then what is delivered, without gaps and without duplicates. */
  follow(handlers: SessionHandlers, options: FollowOptions = {}): FollowingSession {
    return new Reader(this, this.#parts, handlers, options)._start(options.signal, this.#parts.signal)
  }

  /** The messages of all streams for a `for await` loop, which ends with the signal. Store the offset of an envelope to resume. */
  messages(options?: FollowOptions): AsyncIterableIterator<unknown> {
    return iterate(handle => this.follow({ message: handle }, options))
  }

  async #subscribe(streamId: string, envelope: boolean | undefined, signal?: AbortSignal): Promise<Subscribed> {
    const subscribed = await this.#parts.http._json<Subscribed>("POST", ["subscribe"], { body: { sessionId: this.id, streamId, envelope }, signal })
    this.#expiresAt = subscribed.expiresAt
    return subscribed
  }
}
