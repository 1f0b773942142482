import { onAbort } from "./abort.js"
import type { ConnectionState, Ending } from "./connection.js"
import type { Environment } from "./environment.js"
import { ConnectionClosedError } from "./errors.js"
import { call } from "./listeners.js"
import { pause } from "./within.js"

/** A reader that comes again by itself. */
export interface Following {
  readonly state: ConnectionState
  /** Resolves when the reader was closed; rejects with the reason if it could not go on. A rejection that nobody awaits does no harm. */
  readonly done: Promise<void>
  close(): void
}

/** How a connection ended, and how long to wait for the next. */
export interface Step {
  why: Ending
  ms: number
  /** Shortest wait, if the device wakes up meanwhile. */
  _floorMs: number
}

/** Connects again and again, until that is pointless or somebody closes it. */
export abstract class Follower implements Following {
  state: ConnectionState = { status: "idle" }
  done!: Promise<void>
  protected readonly _environment: Environment
  protected readonly _closing = new AbortController()
  /** What a sign that the device is reachable does now. */
  protected _woken = () => {}
  readonly #onState: ((state: ConnectionState) => unknown) | undefined

  constructor(environment: Environment, onState: ((state: ConnectionState) => unknown) | undefined) {
    this._environment = environment
    this.#onState = onState
  }

  /** Connects once, and reads until the connection ends. */
  protected abstract _once(): Promise<Step>

  close(): void {
    this._closing.abort()
  }

  /** Begins; any of the signals closes it. */
  _start(...signals: (AbortSignal | undefined)[]): this {
    const forgets = signals.map(signal => onAbort(signal, () => this.close()))
    this.done = this.#run().finally(() => forgets.forEach(forget => forget()))
    this.done.catch(() => {})
    return this
  }

  protected _set(state: ConnectionState): void {
    this.state = state
    call(() => this.#onState?.(state), this._environment.report)
  }

  async #run(): Promise<void> {
    const { clock, wake } = this._environment
    const unwake = wake(() => this._woken())
    const { signal } = this._closing
    let why: Ending = { reason: "closed", reconnect: false }
    while (!signal.aborted) {
      this._set({ status: "connecting" })
      const step = await this._once()
      if (signal.aborted) break
      if (!step.why.reconnect) {
        why = step.why
        break
      }
      const { why: ended, ms, _floorMs: floorMs } = step
      this._set({ status: "waiting", why: ended, retryAt: clock.now() + ms })
      await pause(clock, ms, signal, wake => (this._woken = () => wake(floorMs)))
      this._woken = () => {}
    }
    unwake()
    this._set({ status: "closed", why })
    if (why.reason !== "closed") throw why.error ?? new ConnectionClosedError(`it cannot be read any more: ${why.reason}`, { retryable: false })
  }
}
