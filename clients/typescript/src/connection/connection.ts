import { Backoff, retryAfterMs, SETTLED_MS, type BackoffOptions } from "./backoff.js"
import type { Environment } from "./environment.js"
import { ConnectionClosedError, isTransient, TidingsError, TimeoutError, UnauthorizedError } from "./errors.js"
import { Listeners } from "./listeners.js"
import { SLEPT_MS, WATCH_MS } from "./silence.js"
import type { TokenReason, TokenSource } from "./token.js"

/** Why a connection ended, and what follows. */
export interface Ending {
  /** `lost`, `timeout`, `silent`, `no-token`, `refused`, `closed`, or what the server says, such as `going-away`. */
  reason: string
  /** Close code of the WebSocket, or HTTP status of a refused handshake. */
  code?: number | undefined
  /** Whether the client connects again. */
  reconnect: boolean
  /** Shortest time before that, as the server asks. */
  retryAfterMs?: number | undefined
  /** Whether the token was refused, so that another one is needed. */
  tokenRefused?: boolean
  error?: unknown
}

/** State of a connection. It begins `idle` and connects when it is first needed. */
export type ConnectionState =
  | { readonly status: "idle" }
  | { readonly status: "connecting" }
  | { readonly status: "connected" }
  /** Connects again at `retryAt`, or sooner when the device wakes up. */
  | { readonly status: "waiting"; readonly why: Ending; readonly retryAt: number }
  /** Does not connect again. */
  | { readonly status: "closed"; readonly why: Ending }

export interface ConnectionOptions {
  environment: Environment
  token: TokenSource
  backoff?: BackoffOptions | undefined
  onError(error: unknown): void
}

/** Time from dialling to {@link Connection.ready}. */
export const CONNECT_TIMEOUT_MS = 15_000
/** Time within which anything must be heard after a heartbeat. */
export const ANSWER_TIMEOUT_MS = 10_000
/** The same when the device has woken up, where a dead connection is likely. */
export const PROBE_TIMEOUT_MS = 4_000
/** Bytes that may wait in the socket before it counts as blocked. */
export const BUFFERED_MAX = 4 * 1024 * 1024
export const NO_WEBSOCKET = "there is no WebSocket: pass one as `environment.WebSocket`"
/** Longest time between attempts to renew a token. */
const RENEW_RETRY_MAX_MS = 10_000

/**
 * One WebSocket that comes again by itself. Knows when to connect, how long to wait and when the other side is gone; what is
 * said on the wire is up to each capability.
 */
export abstract class Connection {
  readonly _environment: Environment
  /** Takes errors that belong to no call. */
  readonly _report: (error: unknown) => void
  readonly _states: Listeners<ConnectionState>
  state: ConnectionState = { status: "idle" }
  heartbeatMs = 25_000

  readonly #token: TokenSource
  readonly #backoff: Backoff
  #socket: WebSocket | undefined
  /** Counts dials, so that what belongs to an earlier one is ignored. */
  #dial = 0
  /** What stops the timers of this dial. */
  #cancels = new Map<string, () => void>()
  #unwake = () => {}
  #notBefore = 0
  #heardAt = 0
  #readyAt = Infinity
  #tokenReason: TokenReason = "connect"
  #refusals = 0

  constructor({ environment, token, backoff, onError }: ConnectionOptions) {
    this.#token = token
    this._environment = environment
    this._report = onError
    this.#backoff = new Backoff(environment.random, backoff)
    this._states = new Listeners(environment.report)
  }

  /** A frame that the server answers. */
  abstract readonly _heartbeat: string
  /** URL to connect to. */
  abstract _address(token: string | null): URL
  /** The socket is open; {@link ready} is to be called when it may be used. */
  abstract _opened(): void
  abstract _received(data: string | ArrayBuffer): void
  /** The connection is gone; what waits for an answer gets none. */
  abstract _lost(why: Ending): void
  /** What a close code means. */
  abstract _judge(code: number, reason: string): Ending

  /** Connects, if it is the first time. */
  _start(): void {
    if (this.state.status !== "idle") return
    this.#unwake = this._environment.wake(() => this.#woken())
    void this.#connect()
  }

  /** The handshake is over: the connection may be used. */
  _ready(): void {
    this.#cancel("connect")
    this.#readyAt = this.#now()
    this.#set({ status: "connected" })
    this.#watch()
  }

  /** Sends a frame; returns whether the socket took it. */
  _send(data: string | Uint8Array): boolean {
    if (this.#socket?.readyState !== 1) return false
    this.#socket.send(data as string)
    return true
  }

  /** Whether more waits in the socket than it should. */
  get _blocked(): boolean {
    return (this.#socket?.bufferedAmount ?? 0) > BUFFERED_MAX
  }

  /** Calls back after a delay, unless the connection ends before or the name is used again. */
  _after(name: string, delayMs: number, callback: () => void): void {
    this.#cancel(name)
    const cancel = this._environment.clock.after(delayMs, () => {
      this.#cancels.delete(name)
      callback()
    })
    this.#cancels.set(name, cancel)
  }

  /** Gets another token and passes it on; again, if that fails, until the old one expires: then the server closes. */
  async _renew(leftMs: number, pass: (token: string | null) => unknown): Promise<void> {
    if (!this.#token._renewable) return
    const dial = this.#dial
    try {
      const next = await this.#token._get("expiring")
      if (dial === this.#dial) await pass(next)
    } catch (error) {
      if (dial !== this.#dial) return
      this._report(error)
      const delay = Math.min(leftMs / 2, RENEW_RETRY_MAX_MS)
      if (delay > 1_000) this._after("renew", delay, () => void this._renew(leftMs - delay, pass))
    }
  }

  /** Ends this socket; whether another follows is up to the ending. */
  _end(why: Ending): void {
    if (this.state.status === "closed") return
    this.#dial++
    for (const cancel of this.#cancels.values()) cancel()
    this.#cancels.clear()
    this.#drop()
    const lasted = this.#now() - this.#readyAt
    this.#backoff._lasted(lasted)
    if (lasted >= SETTLED_MS) this.#refusals = 0
    this.#readyAt = Infinity
    this._lost(why)
    if (why.tokenRefused) {
      this.#tokenReason = "refused"
      // A second refusal in a row, or a token that cannot change, is final.
      if (!this.#token._renewable || ++this.#refusals > 1) why = { ...why, reconnect: false }
    }
    if (why.reconnect) {
      const delay = this.#backoff._next(why.retryAfterMs)
      this.#notBefore = this.#now() + (why.retryAfterMs ?? 0)
      this.#retryIn(delay, why)
    } else {
      this.#unwake()
      this.#set({ status: "closed", why })
    }
  }

  /** Closes for good. */
  close(reason = "closed", error?: unknown): void {
    this._end({ reason, reconnect: false, error })
  }

  #retryIn(delay: number, why: Ending): void {
    this._after("retry", delay, () => void this.#connect())
    this.#set({ status: "waiting", why, retryAt: this.#now() + delay })
  }

  async #connect(): Promise<void> {
    const dial = ++this.#dial
    this.#set({ status: "connecting" })
    // Whoever heard the state may have closed the connection.
    if (dial !== this.#dial) return
    try {
      const token = await this.#token._get(this.#tokenReason)
      if (dial === this.#dial) this.#open(token)
    } catch (error) {
      if (dial !== this.#dial) return
      this._report(error)
      this._end({ reason: "no-token", reconnect: !(error instanceof UnauthorizedError), error })
    }
  }

  #open(token: string | null): void {
    const { WebSocket } = this._environment
    if (!WebSocket) return this.close("no-websocket", new TypeError(NO_WEBSOCKET))
    const address = this._address(token)
    let socket: WebSocket
    try {
      socket = this.#socket = new WebSocket(address.href)
    } catch (error) {
      return this.close("bad-address", error)
    }
    this._after("connect", CONNECT_TIMEOUT_MS, () => {
      this._end({ reason: "timeout", reconnect: true, error: new TimeoutError("no answer in time") })
    })
    socket.binaryType = "arraybuffer"
    let opened = false
    socket.onopen = () => {
      opened = true
      this.#tokenReason = "connect"
      this.#heard()
      this._opened()
    }
    socket.onmessage = ({ data }) => {
      this.#heard()
      try {
        this._received(data as string | ArrayBuffer)
      } catch (error) {
        this._report(error)
      }
    }
    const failed = () => {
      this.#drop()
      void this.#explain(address)
    }
    // Some platforms do not tell the end of a handshake that failed.
    socket.onerror = () => opened || failed()
    socket.onclose = ({ code, reason }) => (opened ? this._end(this._judge(code, reason)) : failed())
  }

  /** A page cannot see why a handshake was refused, so it asks by a plain request, which gets the same refusal. */
  async #explain(address: URL): Promise<void> {
    const dial = this.#dial
    let why: Ending = { reason: "lost", reconnect: true }
    try {
      const answer = await this._environment.fetch(address.href.replace("ws", "http"), { cache: "no-store" })
      const { status: code } = answer
      const text = await answer.text()
      // 426 is the answer to whoever does not want a WebSocket: nothing is wrong with the rest of the request.
      if (code >= 400 && code !== 426) {
        const tokenRefused = code === 401
        why = {
          reason: "refused",
          code,
          reconnect: tokenRefused || isTransient(code),
          tokenRefused,
          retryAfterMs: retryAfterMs(answer.headers.get("retry-after"), this.#now()),
          error: new TidingsError(`refused with ${code}: ${text.slice(0, 300)}`, { code: "REFUSED", details: { status: code } }),
        }
      }
    } catch {
      // The server is away, or does not let this page read its answers.
    }
    if (dial === this.#dial) this._end(why)
  }

  #drop(): void {
    const socket = this.#socket
    this.#socket = undefined
    if (!socket) return
    // A half-open connection may take minutes to close; nobody waits for it.
    socket.onopen = socket.onmessage = socket.onclose = null
    socket.onerror = () => {}
    socket.close(1000)
  }

  #heard(): void {
    this.#heardAt = this.#now()
    this.#cancel("answer")
  }

  #watch(): void {
    const due = this.#now() + Math.min(WATCH_MS, this.heartbeatMs)
    this._after("watch", due - this.#now(), () => {
      const now = this.#now()
      if (now - due > SLEPT_MS) this.#probe(PROBE_TIMEOUT_MS)
      else if (now - this.#heardAt >= this.heartbeatMs) this.#probe(ANSWER_TIMEOUT_MS)
      this.#watch()
    })
  }

  #probe(timeoutMs: number): void {
    if (this.#cancels.has("answer")) return
    this._send(this._heartbeat)
    this._after("answer", timeoutMs, () => {
      this._end({ reason: "silent", reconnect: true, error: new ConnectionClosedError("the server is silent") })
    })
  }

  /** The device may be reachable again: whoever waits need not wait longer, except for what the server asked for. */
  #woken(): void {
    const { state } = this
    if (state.status === "connected") this.#probe(PROBE_TIMEOUT_MS)
    if (state.status === "waiting") this.#retryIn(Math.max(Math.min(this.#notBefore, state.retryAt) - this.#now(), 0), state.why)
  }

  #set(state: ConnectionState): void {
    this.state = state
    this._states._emit(state)
  }

  #now(): number {
    return this._environment.clock.now()
  }

  #cancel(name: string): void {
    this.#cancels.get(name)?.()
    this.#cancels.delete(name)
  }
}

/** The error of who asks for something when the connection is closed for good. */
export function closedError(why: Ending): ConnectionClosedError {
  return new ConnectionClosedError(`the connection is closed: ${why.reason}`, { retryable: false, cause: why.error })
}
