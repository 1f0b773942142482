import type { Target } from "../connection/address.js"
import type { Clock } from "../connection/clock.js"
import type { Environment } from "../connection/environment.js"
import { Http } from "../connection/http.js"
import { parts } from "../connection/parts.js"
import type { TokenProvider } from "../connection/token.js"

/** A condition on an event, by a JSON pointer. */
export interface Condition {
  eq?: unknown
  in?: unknown[]
  gt?: number
  lt?: number
  prefix?: string
  exists?: boolean
}

/** What can be changed about a hook. */
export interface HookSettings {
  url?: string
  format?: "envelope" | "raw" | "cloudevents-structured" | "cloudevents-binary"
  filter?: Record<string, Condition> | null
  /** Attempts in all, 0 to 100. */
  maxRetries?: number
  /** Delays in milliseconds after the first, second, … failed attempt. */
  retrySchedule?: number[] | null
  timeoutMs?: number
  ordering?: "none" | "subscription" | "key"
  /** JSON pointer, for `ordering: "key"`. */
  orderingKey?: string | null
  /** Deliveries per second. */
  rateLimit?: number | null
  concurrency?: number
  headers?: Record<string, string> | null
  workerId?: string
  rpcMethod?: string
}

/** A hook as the server shows it: without its secret and the values of its headers. */
export interface Hook extends Omit<HookSettings, "headers"> {
  id: string
  pattern: string
  active: boolean
  headerNames: string[]
  createdAt: number
  updatedAt: number
  stats?: { pending: number; failed: number; deadLetters: number; delivered: number; attempts: number }
}

/** An event to be sent. */
export interface NewHookEvent {
  type: string
  /** Time of the event, ISO 8601. Default: now. */
  ts?: string
  /** Your id of the event: another event with it is sent to no hook again. */
  id?: string
  [member: string]: unknown
}

export type DeliveryStatus = "pending" | "failed" | "delivered" | "dead"

export interface DeliveryRecord {
  id: string
  eventId: string
  type: string
  status: DeliveryStatus
  attempts: number
  position: string
  createdAt: number
  deliveredAt?: number
  lastError?: string
}

export interface Attempt {
  number: number
  status: string
  at: number
  durationMs: number
  error?: string
  [member: string]: unknown
}

export interface DeadLetter {
  id: string
  deliveryId: string
  eventId: string
  type: string
  event: Record<string, unknown>
  reason: "max_retries_exceeded" | "endpoint_gone" | "expired" | "queue_full" | (string & {})
  lastError?: string
  createdAt: number
}

interface Call {
  signal?: AbortSignal
}

export interface HooksOptions extends Target {
  /** A token with `read`, and `write` for all that changes anything, or an API key. */
  token?: TokenProvider
  environment?: Partial<Environment>
}

/** Hooks of a project: the REST API. */
export class Hooks {
  readonly #http: Http
  readonly #clock: Clock

  constructor(options: HooksOptions) {
    const shared = parts(options)
    this.#clock = shared.environment.clock
    this.#http = new Http(options, shared)
  }

  /** Creates a hook. Its secret is not shown again. */
  create(hook: HookSettings & { pattern: string }, { signal }: Call = {}): Promise<Hook & { secret: string }> {
    return this.#http._json("POST", ["hooks"], { body: hook, signal })
  }

  get(id: string, { signal }: Call = {}): Promise<Hook> {
    return this.#http._json("GET", ["hooks", id], { signal })
  }

  /** All hooks, the newest first. Pages are fetched as they are needed. */
  list({ limit, signal }: Call & { limit?: number } = {}): AsyncGenerator<Hook> {
    return this.#pages("hooks", ["hooks"], { limit }, signal)
  }

  /** Changes settings; `null` restores a default. The pattern cannot be changed. */
  update(id: string, settings: HookSettings, { signal }: Call = {}): Promise<Hook> {
    return this.#http._json("PATCH", ["hooks", id], { body: settings, signal })
  }

  /** Removes a hook with everything that belongs to it. */
  delete(id: string, { signal }: Call = {}): Promise<void> {
    return this.#http._json("DELETE", ["hooks", id], { signal })
  }

  pause(id: string, { signal }: Call = {}): Promise<void> {
    return this.#http._json("POST", ["hooks", id, "pause"], { signal })
  }

  /** Goes on; with `replay` also with what arrived meanwhile. */
  resume(id: string, { replay = false, signal }: Call & { replay?: boolean } = {}): Promise<{ events: number }> {
    return this.#http._json("POST", ["hooks", id, "resume"], { body: { replay }, signal })
  }

  /** Sends a test event to one hook, whatever its pattern. */
  test(id: string, { signal }: Call = {}): Promise<{ deliveryId: string }> {
    return this.#http._json("POST", ["hooks", id, "test"], { signal })
  }

  /** Makes a new secret; both sign until the overlap is over. */
  rotateSecret(id: string, { overlapSeconds, signal }: Call & { overlapSeconds?: number } = {}): Promise<{ secret: string }> {
    return this.#http._json("POST", ["hooks", id, "rotate-secret"], { body: { overlapSeconds }, signal })
  }

  /** Delivers events of the past: from a time in ISO 8601, or from the position of a delivery. */
  replay(id: string, { from, to, signal }: Call & { from: string; to?: string }): Promise<{ events: number }> {
    return this.#http._json("POST", ["hooks", id, "replay"], { body: { from, to }, signal })
  }

  /** Deliveries, the oldest first. */
  deliveries(id: string, { status, limit, signal }: Call & { status?: DeliveryStatus; limit?: number } = {}): AsyncGenerator<DeliveryRecord> {
    return this.#pages("deliveries", ["hooks", id, "deliveries"], { status, limit }, signal)
  }

  async attempts(id: string, delivery: string, { signal }: Call = {}): Promise<Attempt[]> {
    return (await this.#http._json<{ attempts: Attempt[] }>("GET", ["hooks", id, "deliveries", delivery, "attempts"], { signal })).attempts
  }

  /** Dead letters, the newest first. */
  deadLetters(id: string, { limit, signal }: Call & { limit?: number } = {}): AsyncGenerator<DeadLetter> {
    return this.#pages("deadLetters", ["hooks", id, "dead-letters"], { limit }, signal)
  }

  /** Delivers a dead letter again, as a new delivery. */
  retryDeadLetter(id: string, deadLetter: string, { signal }: Call = {}): Promise<{ deliveryId: string }> {
    return this.#http._json("POST", ["hooks", id, "dead-letters", deadLetter, "retry"], { signal })
  }

  /** Delivers all dead letters again, or those of a time or with a part of an error. */
  retryDeadLetters(id: string, { from, to, error, signal }: Call & { from?: string; to?: string; error?: string } = {}): Promise<{ retried: number }> {
    return this.#http._json("POST", ["hooks", id, "dead-letters", "retry"], { body: { from, to, error }, signal })
  }

  /** Hooks that an event of this type would reach. */
  async match(type: string, { signal }: Call = {}): Promise<Hook[]> {
    return (await this.#http._json<{ hooks: Hook[] }>("GET", ["hooks", "match"], { query: { type }, signal })).hooks
  }

  /** Sends up to 1,000 events, all or none. They are on the server's disk when this resolves. */
  send(events: NewHookEvent | NewHookEvent[], { batchId, signal }: Call & { batchId?: string } = {}): Promise<{ ok: true; received: number; deduplicated?: boolean }> {
    const now = new Date(this.#clock.now()).toISOString()
    const list = (Array.isArray(events) ? events : [events]).map(event => ({ ts: now, ...event }))
    return this.#http._json("POST", ["events"], { body: { batchId, events: list }, signal })
  }

  async *#pages<T>(name: string, segments: string[], query: Record<string, string | number | undefined>, signal?: AbortSignal): AsyncGenerator<T> {
    let cursor: string | undefined
    do {
      const page: Record<string, unknown> = await this.#http._json("GET", segments, { query: { ...query, cursor }, signal })
      yield* page[name] as T[]
      cursor = page.nextCursor as string | undefined
    } while (cursor !== undefined)
  }
}
