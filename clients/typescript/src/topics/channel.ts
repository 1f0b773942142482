import { Connection, type Ending, type Protocol } from "../connection/connection.js"
import { abortReason, ConnectionClosedError } from "../connection/errors.js"
import { socketAddress } from "../connection/address.js"
import type { Environment } from "../connection/environment.js"
import type { BackoffOptions } from "../connection/backoff.js"
import type { TokenSource } from "../connection/token.js"
import { within, type Patience } from "../connection/within.js"
import { refusal, type Refusal } from "./errors.js"
import { byteLength, decode, encodeBinary, type Farewell, type Frame, type Hello } from "./wire.js"

/** Close codes after which connecting again would not help. */
const FINAL = new Set([1002, 1007, 1008, 1009, 4403])
/** Requests that may wait for the connection. */
const WAITING_MAX = 1_000

export interface ChannelOptions {
  url: URL
  token: TokenSource
  environment: Environment
  backoff?: BackoffOptions | undefined
  onError(error: unknown): void
  /** The server has said hello. What is sent now goes before everything that waits. */
  onHello(hello: Hello): void
  /** A frame that answers no request. */
  onFrame(frame: Frame & { binary: boolean }): void
  onLost(why: Ending): void
}

interface Asked {
  resolve(payload: unknown): void
  reject(error: unknown): void
  forget(): void
}

/** Requests and replies over the connection: each request has one answer, or the connection is lost. */
export class Channel implements Protocol {
  readonly connection: Connection
  hello: Hello | undefined
  readonly #options: ChannelOptions
  readonly #asked = new Map<string, Asked>()
  readonly #waiting = new Set<{ resolve(): void; reject(error: unknown): void }>()
  #number = 0
  #farewell: Farewell | undefined
  #session: string | undefined
  #cancelRenewal = () => {}

  constructor(options: ChannelOptions) {
    this.#options = options
    const { environment, token, backoff, onError } = options
    this.connection = new Connection(this, { environment, token, backoff, onError })
  }

  /** Whether requests can be sent. */
  get open(): boolean {
    return this.hello !== undefined
  }

  /** Resolves when requests can be sent. */
  async whenOpen(patience: Patience = {}): Promise<void> {
    if (this.open) return
    const { state } = this.connection
    if (state.status === "closed") throw closed(state.why)
    if (this.#waiting.size >= WAITING_MAX) throw new ConnectionClosedError(`${WAITING_MAX} requests wait for the connection`)
    this.connection.start()
    const { promise, ...waiting } = deferred()
    this.#waiting.add(waiting)
    return within(promise, this.connection.environment.clock, patience).finally(() => this.#waiting.delete(waiting))
  }

  /**
   * Sends a request, resolves with the payload of its reply. If the signal aborts, the server is asked to cancel: it does,
   * or the request has taken effect and is answered as if nothing had happened.
   */
  ask<T>(type: string, payload: unknown, { signal, bytes }: { signal?: AbortSignal | undefined; bytes?: Uint8Array } = {}): Promise<T> {
    if (signal?.aborted) return Promise.reject(abortReason(signal))
    const correlationId = String(++this.#number)
    const frame = { type, meta: { correlationId }, payload }
    const data = bytes ? encodeBinary(frame, bytes) : JSON.stringify(frame)
    const limit = this.hello?.limits.frameBytes ?? Infinity
    // The server would close the connection.
    if ((typeof data === "string" ? byteLength(data, limit) : data.length) > limit) {
      return Promise.reject(refusal({ code: "RESOURCE_EXHAUSTED", message: `a frame has at most ${limit} bytes`, details: { limit } }))
    }
    if (!this.open || !this.connection.send(data)) return Promise.reject(new ConnectionClosedError("not connected"))
    return new Promise<T>((resolve, reject) => {
      const abort = () => this.connection.send(JSON.stringify({ type: "$ws:abort", meta: { correlationId } }))
      signal?.addEventListener("abort", abort)
      this.#asked.set(correlationId, {
        resolve: resolve as (payload: unknown) => void,
        reject: error => reject(signal?.aborted && (error as { code?: string }).code === "CANCELLED" ? abortReason(signal) : error),
        forget: () => signal?.removeEventListener("abort", abort),
      })
    })
  }

  address(token: string | null): URL {
    const url = socketAddress(this.#options.url)
    if (token !== null) url.searchParams.set("token", token)
    // The sender stays the same one, for `excludeSelf`.
    if (this.#session) url.searchParams.set("session", this.#session)
    return url
  }

  opened(): void {
    this.#farewell = undefined
  }

  received(data: string | ArrayBuffer): void {
    const frame = decode(data)
    const { type, meta, payload } = frame
    if (type === "$reply" || type === "RPC_ERROR") {
      const id = String(meta?.correlationId)
      const asked = this.#asked.get(id)
      this.#asked.delete(id)
      asked?.forget()
      if (type === "$reply") asked?.resolve(payload ?? {})
      else asked?.reject(refusal(payload as Refusal))
    } else if (type === "$hello") this.#greeted(payload as Hello)
    else if (type === "$close") this.#farewell = payload as Farewell
    else if (type === "__heartbeat_ack") this.#scheduleRenewal(Number(meta?.ts))
    else if (type === "ERROR") this.#options.onError(refusal(payload as Refusal))
    else this.#options.onFrame(frame)
  }

  lost(why: Ending): void {
    this.hello = undefined
    this.#cancelRenewal()
    const asked = [...this.#asked.values()]
    this.#asked.clear()
    this.#options.onLost(why)
    const error = new ConnectionClosedError(`the connection ended before the answer came: ${why.reason}`)
    for (const one of asked) {
      one.forget()
      one.reject(error)
    }
    // What waits for a connection goes on waiting, unless there will be none.
    queueMicrotask(() => {
      const { state } = this.connection
      if (state.status === "closed") for (const waiting of [...this.#waiting]) waiting.reject(closed(state.why))
    })
  }

  judge(code: number, reason: string): Ending {
    const said = this.#farewell
    const tokenRefused = code === 4401
    return {
      reason: said?.reason ?? (reason || "lost"),
      code,
      reconnect: tokenRefused || (said?.reconnect ?? !FINAL.has(code)),
      retryAfterMs: said?.retryAfterMs,
      tokenRefused,
    }
  }

  heartbeat(): string {
    return '{"type":"__heartbeat"}'
  }

  #greeted(hello: Hello): void {
    this.hello = hello
    this.#session = hello.session
    this.connection.heartbeatMs = hello.heartbeatMs
    this.#options.onHello(hello)
    for (const waiting of [...this.#waiting]) waiting.resolve()
    // The answer has the server's time, which `expiresAt` is in.
    if (hello.expiresAt !== null && this.#options.token.renewable) this.connection.send(this.heartbeat())
  }

  /** Gets another token when four fifths of the old one's time are over, or a minute before its end. */
  #scheduleRenewal(serverNow: number): void {
    this.#cancelRenewal()
    const expiresAt = this.hello?.expiresAt
    if (expiresAt == null || !this.#options.token.renewable || !(serverNow > 0)) return
    const left = expiresAt - serverNow
    const delay = Math.max(left * 0.8, left - 60_000)
    this.#cancelRenewal = this.connection.environment.clock.after(delay, () => void this.#renew(left - delay))
  }

  async #renew(leftMs: number): Promise<void> {
    const { hello } = this
    try {
      const token = await this.#options.token.get("expiring")
      if (!hello || hello !== this.hello) return
      const { expiresAt } = await this.ask<{ expiresAt: number | null }>("$auth", { token })
      hello.expiresAt = expiresAt
      if (expiresAt !== null) this.connection.send(this.heartbeat())
    } catch (error) {
      if (hello !== this.hello) return
      this.#options.onError(error)
      // Again, until the old token expires: then the server closes, and the client comes with a new one.
      const next = leftMs / 2
      if (next > 1_000) this.#cancelRenewal = this.connection.environment.clock.after(next, () => void this.#renew(next))
    }
  }
}

function deferred(): { promise: Promise<void>; resolve(): void; reject(error: unknown): void } {
  let parts: { resolve(): void; reject(error: unknown): void }
  const promise = new Promise<void>((resolve, reject) => (parts = { resolve, reject }))
  return { promise, ...parts! }
}

/** The error of who asks for something when the connection is closed for good. */
export function closed(why: Ending): ConnectionClosedError {
  return new ConnectionClosedError(`the connection is closed: ${why.reason}`, { retryable: false, cause: why.error })
}
