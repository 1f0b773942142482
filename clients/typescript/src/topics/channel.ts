import { onAbort } from "../connection/abort.js"
import { socketAddress } from "../connection/address.js"
import { closedError, Connection, type ConnectionOptions, type Ending } from "../connection/connection.js"
import { ConnectionClosedError } from "../connection/errors.js"
import { within, type Patience } from "../connection/within.js"
import { refusal, type Refusal } from "./errors.js"
import { decode, encodeBinary, isLonger, type Farewell, type Frame, type Hello } from "./wire.js"

/** Close codes after which connecting again would not help. */
const FINAL = new Set([1002, 1007, 1008, 1009, 4403])
/** Requests that may wait for the connection. */
const WAITING_MAX = 1_000

export interface ChannelOptions extends ConnectionOptions {
  url: URL
  /** The server has said hello. What is sent now goes before everything that waits. */
  _onHello(hello: Hello): void
  /** A frame that answers no request. */
  _onFrame(frame: Frame): void
  _onLost(): void
}

interface Waiter<T> {
  resolve(value: T): void
  reject(error: unknown): void
}

/** Requests and replies over the connection: each request has one answer, or the connection is lost. */
export class Channel extends Connection {
  /** What the server said on this connection; undefined while requests cannot be sent. */
  _hello: Hello | undefined
  readonly _heartbeat = '{"type":"__heartbeat"}'
  readonly #options: ChannelOptions
  readonly #asked = new Map<string, Waiter<unknown>>()
  /** Who waits until requests can be sent. */
  readonly _waiting = new Set<Waiter<void>>()
  #number = 0
  #farewell: Farewell | undefined
  #session: string | undefined

  constructor(options: ChannelOptions) {
    super(options)
    this.#options = options
  }

  /** Resolves when requests can be sent. */
  async _whenOpen(patience: Patience): Promise<void> {
    const { state } = this
    if (this._hello) return
    if (state.status === "closed") throw closedError(state.why)
    if (this._waiting.size >= WAITING_MAX) throw new ConnectionClosedError(`${WAITING_MAX} requests wait`)
    this._start()
    let waiter: Waiter<void>
    const opened = new Promise<void>((resolve, reject) => this._waiting.add((waiter = { resolve, reject })))
    return within(opened, this._environment.clock, patience).finally(() => this._waiting.delete(waiter))
  }

  /**
   * Sends a request, resolves with the payload of its reply. If the signal aborts, the server is asked to cancel: it does,
   * or the request has taken effect and is answered as if nothing had happened.
   */
  _ask<T>(type: string, payload: unknown, { signal, bytes }: { signal?: AbortSignal | undefined; bytes?: Uint8Array | undefined } = {}): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      signal?.throwIfAborted()
      const meta = { correlationId: String(++this.#number) }
      const frame = { type, meta, payload }
      const data = bytes ? encodeBinary(frame, bytes) : JSON.stringify(frame)
      const limit = this._hello?.limits.frameBytes
      // The server would close the connection.
      if (isLonger(data, limit)) {
        throw refusal({ code: "RESOURCE_EXHAUSTED", message: `a frame has more than ${limit} bytes`, details: { limit } })
      }
      if (!this._hello || !this._send(data)) throw new ConnectionClosedError("not connected")
      const forget = onAbort(signal, () => this._send(JSON.stringify({ type: "$ws:abort", meta })))
      this.#asked.set(meta.correlationId, {
        resolve(payload) {
          forget()
          resolve(payload as T)
        },
        reject(error) {
          forget()
          reject(signal?.aborted && (error as { code?: string }).code === "CANCELLED" ? signal.reason : error)
        },
      })
    })
  }

  _address(token: string | null): URL {
    const url = socketAddress(this.#options.url)
    if (token !== null) url.searchParams.set("token", token)
    // The sender stays the same one, for `excludeSelf`.
    if (this.#session) url.searchParams.set("session", this.#session)
    return url
  }

  _opened(): void {
    this.#farewell = undefined
  }

  _received(data: string | ArrayBuffer): void {
    const frame = decode(data)
    const { type, meta, payload } = frame
    if (type === "$reply" || type === "RPC_ERROR") {
      const id = String(meta?.correlationId)
      const asked = this.#asked.get(id)
      this.#asked.delete(id)
      if (type === "$reply") asked?.resolve(payload ?? {})
      else asked?.reject(refusal(payload as Refusal))
    } else if (type === "$hello") this.#greeted(payload as Hello)
    else if (type === "$close") this.#farewell = payload as Farewell
    else if (type === "__heartbeat_ack") this.#scheduleRenewal(Number(meta?.ts))
    else if (type === "ERROR") this._report(refusal(payload as Refusal))
    else this.#options._onFrame(frame)
  }

  _lost(why: Ending): void {
    this._hello = undefined
    const asked = [...this.#asked.values()]
    this.#asked.clear()
    this.#options._onLost()
    for (const waiter of asked) waiter.reject(new ConnectionClosedError(`lost before the answer: ${why.reason}`))
  }

  _judge(code: number, reason: string): Ending {
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

  #greeted(hello: Hello): void {
    this._hello = hello
    this.#session = hello.session
    this.heartbeatMs = hello.heartbeatMs
    this.#options._onHello(hello)
    for (const waiter of this._waiting) waiter.resolve()
    this.#askTime()
  }

  /** The answer to a heartbeat has the server's time, which `expiresAt` is in. */
  #askTime(): void {
    if (this._hello?.expiresAt != null) this._send(this._heartbeat)
  }

  /** Gets another token when four fifths of the old one's time are over, or a minute before its end. */
  #scheduleRenewal(serverNow: number): void {
    const { _hello: hello } = this
    if (hello?.expiresAt == null || !(serverNow > 0)) return
    const left = hello.expiresAt - serverNow
    const delay = Math.max(left * 0.8, left - 60_000)
    const renew = async (token: string | null) => {
      hello.expiresAt = (await this._ask<Hello>("$auth", { token })).expiresAt
      this.#askTime()
    }
    this._after("renew", delay, () => void this._renew(left - delay, renew))
  }
}
