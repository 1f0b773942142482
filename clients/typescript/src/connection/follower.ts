import { onAbort } from "./abort.js"
import type { ConnectionState, Ending } from "./connection.js"
import type { Environment } from "./environment.js"
import { ConnectionClosedError } from "./errors.js"
import { call } from "./listeners.js"

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
  floorMs: number
}

/** Connects again and again, until that is pointless or somebody closes it. */
export abstract class Follower implements Following {
  state: ConnectionState = { status: "idle" }
  done!: Promise<void>
  protected readonly environment: Environment
  protected readonly closing = new AbortController()
  /** What a sign that the device is reachable does now. */
  protected woken = () => {}
  readonly #onState: ((state: ConnectionState) => unknown) | undefined

  constructor(environment: Environment, onState: ((state: ConnectionState) => unknown) | undefined) {
    this.environment = environment
    this.#onState = onState
  }

  /** Connects once, and reads until the connection ends. */
  protected abstract once(): Promise<Step>

  close(): void {
    this.closing.abort()
  }

  /** Begins; any of the signals closes it. */
  start(...signals: (AbortSignal | undefined)[]): this {
    const forgets = signals.map(signal => onAbort(signal, () => this.close()))
    this.done = this.#run().finally(() => forgets.forEach(forget => forget()))
    this.done.catch(() => {})
    return this
  }

  protected set(state: ConnectionState): void {
    this.state = state
    call(() => this.#onState?.(state), this.environment.report)
  }

  async #run(): Promise<void> {
    const unwake = this.environment.wake(() => this.woken())
    const { signal } = this.closing
    let why: Ending = { reason: "closed", reconnect: false }
    while (!signal.aborted) {
      this.set({ status: "connecting" })
      const step = await this.once()
      if (signal.aborted) break
      if (!step.why.reconnect) {
        why = step.why
        break
      }
      await this.#wait(step)
    }
    unwake()
    this.set({ status: "closed", why })
    if (why.reason !== "closed") throw why.error ?? new ConnectionClosedError(`it cannot be read any more: ${why.reason}`, { retryable: false })
  }

  /** Waits before the next attempt; waking up shortens it, but not below what the server allows. */
  async #wait({ why, ms, floorMs }: Step): Promise<void> {
    const { clock } = this.environment
    const began = clock.now()
    this.set({ status: "waiting", why, retryAt: began + ms })
    let forget = () => {}
    await new Promise<void>(resolve => {
      let cancel = clock.after(ms, resolve)
      this.woken = () => {
        cancel()
        cancel = clock.after(Math.max(began + floorMs - clock.now(), 0), resolve)
      }
      forget = onAbort(this.closing.signal, () => {
        cancel()
        resolve()
      })
    })
    forget()
    this.woken = () => {}
  }
}
