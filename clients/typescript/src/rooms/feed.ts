import type { ConnectionState, Ending } from "../connection/connection.js"
import type { Environment } from "../connection/environment.js"
import { ConnectionClosedError, TidingsError, UnauthorizedError } from "../connection/errors.js"
import { Listeners } from "../connection/listeners.js"
import type { TokenSource } from "../connection/token.js"
import { inMemory, type CursorStore } from "./cursors.js"
import { isCursor, retryAfterOf, type RoomEvent, type RoomInfo } from "./event.js"
import { again, failure, Retry, type End, type Missed } from "./retry.js"
import { missed, openStream, StreamEnd, type Item, type Stream, type Wire } from "./stream.js"

/** Time without a byte after which the server counts as gone: two and a half heartbeats of 15 seconds. */
export const SILENCE_MS = 37_500
/** Interval at which the clock is watched for a jump while waiting for the server. */
const WATCH_MS = 5_000
/** A timer that is late by this much shows that the machine was asleep. */
const SLEPT_MS = 5_000
/** A stream in which nothing was heard for this long is not trusted when the device wakes up. */
const FRESH_MS = 17_000
/** Cursors that are remembered to recognise duplicates. */
const RECENT_MAX = 1_024

/** What a reader of a room is told. Events wait for the promise of the one before. */
export interface FeedHandlers {
  /** Handles an event; then its cursor is stored. If it throws, the reader stops and the cursor is not stored. */
  event?(event: RoomEvent): unknown
  /** Events are gone for good; the stream goes on after them. */
  missed?(missed: Missed): unknown
  /** A notice of the server, such as `caught-up`. */
  info?(info: RoomInfo): unknown
}

export interface FeedOptions {
  url: URL
  wire: Wire
  cursors?: CursorStore | undefined
  token: TokenSource
  environment: Environment
  handlers: FeedHandlers
}

/** Follows a room: connects, handles events, stores cursors, waits, connects again. */
export class Feed {
  state: ConnectionState = { status: "idle" }
  readonly states: Listeners<ConnectionState>
  readonly #options: FeedOptions
  readonly #cursors: CursorStore
  readonly #retry: Retry
  readonly #stopping = new AbortController()
  readonly #recent = new Set<string>()
  /** Whether a gap was told that the next stream will announce again. */
  #missedTold = false
  #wake = () => {}
  #unwake = () => {}

  constructor(options: FeedOptions) {
    this.#options = options
    this.#cursors = options.cursors ?? inMemory()
    this.#retry = new Retry(options.environment.random)
    this.states = new Listeners(options.environment.report)
  }

  /** Follows the room until retrying is pointless or it is stopped; resolves with why. */
  async run(): Promise<Ending> {
    const { environment, token } = this.#options
    this.#unwake = environment.wake(() => this.#wake())
    let refresh = false
    let why: Ending = { reason: "closed", reconnect: false }
    while (!this.#stopping.signal.aborted) {
      this.#set({ status: "connecting" })
      const end = await this.#connectOnce(refresh)
      const next = this.#retry.after(end, token.renewable)
      if (this.#stopping.signal.aborted) break
      if (next.kind === "stop") {
        why = { reason: next.reason, reconnect: false, error: next.error }
        break
      }
      refresh = next.refresh
      const { ms, floorMs, reason, error } = next
      await this.#wait(ms, floorMs, { reason, reconnect: true, error, ...(error instanceof TidingsError && "status" in error && { code: Number(error.status) }) })
    }
    this.#unwake()
    const stopped = this.#stopping.signal
    if (stopped.aborted && stopped.reason) why = stopped.reason as Ending
    this.#set({ status: "closed", why })
    return why
  }

  stop(why: Ending = { reason: "closed", reconnect: false }): void {
    this.#stopping.abort(why)
    this.#wake()
  }

  /** Connects once and handles events until the stream ends. */
  async #connectOnce(refresh: boolean): Promise<End> {
    let stream: Stream | undefined
    let began: number | undefined
    const opening = new AbortController()
    try {
      const cursor = await this.#load()
      const token = await this.#token(refresh)
      const { url, wire, environment } = this.#options
      // Stopped before anything was sent, as a page does that shows a room and leaves it at once.
      if (this.#stopping.signal.aborted) return { kind: "stop", reason: "closed" }
      const request = { url, token, cursor, signal: opening.signal }
      const opened = openStream(wire, request, environment)
      // One that opens after it was given up is closed.
      opened.then(late => opening.signal.aborted && late.close(), () => {})
      stream = await this.#inTime(opened, true)
      this.#set({ status: "connected" })
      began = environment.clock.now()
      if (cursor !== undefined) this.#remember(cursor)
      // Otherwise events written before the first one arrives would be missed if the stream broke.
      else if (stream.start !== undefined) await this.#store(stream.start)
      for (;;) {
        const item = await this.#inTime(stream.next(), stream.heartbeats)
        const end = await this.#take(item)
        if (end) return end
      }
    } catch (error) {
      if (!(error instanceof StreamEnd)) return { kind: "stop", reason: "internal", error }
      const { end } = error
      if (end.kind === "gone" && (end.hadCursor || began !== undefined)) await this.#skip(end.missed)
      return end
    } finally {
      opening.abort()
      stream?.close()
      if (began !== undefined) {
        this.#retry.streamed(this.#options.environment.clock.now() - began)
      }
    }
  }

  async #token(refresh: boolean): Promise<string | null> {
    try {
      return await this.#options.token.get(refresh ? "refused" : "connect")
    } catch (error) {
      if (error instanceof UnauthorizedError) throw new StreamEnd({ kind: "stop", reason: "no-token", error })
      throw new StreamEnd(failure("no-token", error))
    }
  }

  async #take(item: Item): Promise<End | undefined> {
    switch (item.kind) {
      case "retry":
        this.#retry.asked(item.ms)
        return undefined
      case "position":
        await this.#store(item.cursor)
        return undefined
      case "event":
        await this.#handle(item.event)
        return undefined
      case "info":
        return this.#inform(item.info)
      case "sign":
        return undefined
    }
  }

  /** Handles an event, then stores its cursor; in the other order it would be lost if the process ended in between. */
  async #handle(event: RoomEvent): Promise<void> {
    if (this.#recent.has(event.cursor)) return
    this.#missedTold = false
    try {
      await this.#options.handlers.event?.(event)
    } catch (error) {
      throw new StreamEnd({ kind: "stop", reason: "handler", error })
    }
    // Typing is not stored by the server, so nothing can be resumed from it.
    if (event.type !== "typingEvent") await this.#store(event.cursor)
    this.#remember(event.cursor)
  }

  async #inform(info: RoomInfo): Promise<End | undefined> {
    this.#tell("info", info)
    const retryAfterMs = retryAfterOf(info.detail)
    const refusal = (code: string) => new TidingsError(code, String(info.detail.message ?? info.reason), { details: info.detail })
    switch (info.reason) {
      case "caught-up":
        return undefined
      case "compacted":
      case "reset":
        await this.#skip(missed(info.reason, info.detail))
        await this.#store(info.cursor)
        this.#missedTold = false
        return undefined
      case "slow-consumer":
      case "server-restart":
        return again(info.reason, undefined, retryAfterMs)
      case "membership-revoked":
        return { kind: "stop", reason: "forbidden", error: refusal("NotMember") }
      case "token-expired":
        return { kind: "unauthorized", error: refusal("TokenExpired") }
    }
  }

  /** Tells once that events are gone, and drops the cursor. */
  async #skip(gap: Missed): Promise<void> {
    if (!this.#missedTold) this.#tell("missed", gap)
    this.#missedTold = true
    this.#recent.clear()
    await this.#store(undefined)
  }

  #tell<K extends "info" | "missed">(name: K, value: Parameters<NonNullable<FeedHandlers[K]>>[0]): void {
    const { handlers, environment } = this.#options
    try {
      const returned = (handlers[name] as ((value: unknown) => unknown) | undefined)?.call(handlers, value)
      if (returned instanceof Promise) returned.catch(environment.report)
    } catch (error) {
      environment.report(error)
    }
  }

  async #load(): Promise<string | undefined> {
    try {
      const cursor = await this.#cursors.load()
      return isCursor(cursor) ? cursor : undefined
    } catch (error) {
      throw new StreamEnd({ kind: "stop", reason: "cursor-store", error })
    }
  }

  async #store(cursor: string | undefined): Promise<void> {
    try {
      await this.#cursors.store(cursor)
    } catch (error) {
      throw new StreamEnd({ kind: "stop", reason: "cursor-store", error })
    }
  }

  #remember(cursor: string): void {
    this.#recent.add(cursor)
    if (this.#recent.size > RECENT_MAX) this.#recent.delete(this.#recent.values().next().value!)
  }

  /** Waits for the server: not longer than the silence allows, and not on after the machine has slept. */
  #inTime<T>(coming: Promise<T>, heartbeats: boolean): Promise<T> {
    const { clock } = this.#options.environment
    const began = clock.now()
    return new Promise<T>((resolve, reject) => {
      let cancel = () => {}
      let finished = false
      const finish = (how: () => void) => {
        // What was given up may end later, when somebody else waits.
        if (finished) return
        finished = true
        cancel()
        this.#wake = () => {}
        how()
      }
      const lost = (reason: string) => {
        const error = new ConnectionClosedError(reason)
        finish(() => reject(new StreamEnd(failure("silent", error))))
      }
      const watch = (at: number) => {
        const delay = heartbeats ? Math.min(WATCH_MS, began + SILENCE_MS - at) : WATCH_MS
        cancel = clock.after(delay, () => {
          const now = clock.now()
          if (now - at - delay > SLEPT_MS) lost("the machine was asleep")
          else if (heartbeats && now - began >= SILENCE_MS) lost(`the server has said nothing for ${SILENCE_MS / 1000} s`)
          else watch(now)
        })
      }
      this.#wake = () => {
        if (this.#stopping.signal.aborted) finish(() => reject(new StreamEnd({ kind: "stop", reason: "closed" })))
        else if (clock.now() - began > FRESH_MS) lost("the device has woken up and the server was silent")
      }
      watch(began)
      coming.then(value => finish(() => resolve(value)), (error: unknown) => finish(() => reject(error)))
      if (this.#stopping.signal.aborted) this.#wake()
    })
  }

  /** Waits before the next attempt; waking up shortens it, but not below what the server allows. */
  async #wait(ms: number, floorMs: number, why: Ending): Promise<void> {
    const { clock } = this.#options.environment
    const began = clock.now()
    this.#set({ status: "waiting", why, retryAt: began + ms })
    await new Promise<void>(resolve => {
      let cancel = clock.after(ms, resolve)
      this.#wake = () => {
        cancel()
        if (this.#stopping.signal.aborted) resolve()
        else cancel = clock.after(Math.max(began + floorMs - clock.now(), 0), resolve)
      }
      if (this.#stopping.signal.aborted) this.#wake()
    })
    this.#wake = () => {}
  }

  #set(state: ConnectionState): void {
    this.state = state
    this.states.emit(state)
  }
}
