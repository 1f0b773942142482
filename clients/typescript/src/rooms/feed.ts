import { onAbort } from "../connection/abort.js"
import type { ConnectionState } from "../connection/connection.js"
import type { Environment } from "../connection/environment.js"
import { ConnectionClosedError, TidingsError, UnauthorizedError } from "../connection/errors.js"
import { Follower, type Step } from "../connection/follower.js"
import { call } from "../connection/listeners.js"
import { watchSilence } from "../connection/silence.js"
import type { TokenSource } from "../connection/token.js"
import { inMemory, type CursorStore } from "./cursors.js"
import { isCursor, retryAfterOf, type RoomEvent, type RoomInfo } from "./event.js"
import { again, failure, Retry, type End, type Missed } from "./retry.js"
import { missed, openStream, StreamEnd, type Item, type Stream, type Wire } from "./stream.js"

/** Time without a byte after which the server counts as gone: two and a half heartbeats of 15 seconds. */
export const SILENCE_MS = 37_500
/** A stream in which nothing was heard for this long is not trusted when the device wakes up. */
const FRESH_MS = 17_000
/** Cursors that are remembered to recognise duplicates. */
const RECENT_MAX = 1_024

/** What a reader of a room is told. Events wait for the promise of the one before. */
export interface RoomHandlers {
  /** Handles an event; then its cursor is stored. If it throws, the reader stops and the cursor is not stored. */
  event?(event: RoomEvent): unknown
  /** Events are gone for good; the stream goes on after them. */
  missed?(missed: Missed): unknown
  /** A notice of the server, such as `caught-up`. */
  info?(info: RoomInfo): unknown
  state?(state: ConnectionState): unknown
}

export interface FeedOptions {
  url: URL
  wire: Wire
  cursors: CursorStore | undefined
  token: TokenSource
  environment: Environment
  handlers: RoomHandlers
}

/** Follows a room: connects, handles events, stores cursors, waits, connects again. */
export class Feed extends Follower {
  readonly #options: FeedOptions
  readonly #cursors: CursorStore
  readonly #retry: Retry
  readonly #recent = new Set<string>()
  /** Whether a gap was told that the next stream will announce again. */
  #missedTold = false
  #refresh = false

  constructor(options: FeedOptions) {
    const { environment, handlers, cursors = inMemory() } = options
    super(environment, state => handlers.state?.(state))
    this.#options = options
    this.#cursors = cursors
    this.#retry = new Retry(environment.random)
  }

  protected async _once(): Promise<Step> {
    const end = await this.#read()
    const step = this.#retry._after(end, this.#options.token._renewable)
    this.#refresh = step.why.tokenRefused ?? false
    return step
  }

  /** Connects once and handles events until the stream ends. */
  async #read(): Promise<End> {
    let stream: Stream | undefined
    let began: number | undefined
    const opening = new AbortController()
    try {
      const cursor = await this.#load()
      const token = await this.#token()
      const { url, wire } = this.#options
      // Closed before anything was sent, as a page does that shows a room and leaves it at once.
      if (this._closing.signal.aborted) return { kind: "stop", reason: "closed" }
      const opened = openStream(wire, { url, token, cursor, signal: opening.signal }, this._environment)
      // One that opens after it was given up is closed.
      opened.then(late => opening.signal.aborted && late.close(), () => {})
      stream = await this.#inTime(opened, true)
      this._set({ status: "connected" })
      began = this._environment.clock.now()
      if (cursor !== undefined) this.#remember(cursor)
      // Otherwise events written before the first one arrives would be missed if the stream broke.
      else if (stream.start !== undefined) await this.#store(stream.start)
      for (;;) {
        const item = await this.#inTime(stream.next(), stream._heartbeats)
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
      if (began !== undefined) this.#retry._streamed(this._environment.clock.now() - began)
    }
  }

  async #token(): Promise<string | null> {
    try {
      return await this.#options.token._get(this.#refresh ? "refused" : "connect")
    } catch (error) {
      if (error instanceof UnauthorizedError) throw new StreamEnd({ kind: "stop", reason: "no-token", error })
      throw new StreamEnd(failure("no-token", error))
    }
  }

  async #take(item: Item): Promise<End | undefined> {
    if (item.kind === "info") return this.#inform(item.info)
    if (item.kind === "retry") this.#retry._asked(item.ms)
    else if (item.kind === "position") await this.#store(item.cursor)
    else if (item.kind === "event") await this.#handle(item.event)
    return undefined
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
    const { reason, detail, cursor } = info
    call(() => this.#options.handlers.info?.(info), this._environment.report)
    const refusal = (code: string) => new TidingsError(String(detail.message ?? reason), { code, details: detail })
    switch (reason) {
      case "caught-up":
        return undefined
      case "compacted":
      case "reset":
        await this.#skip(missed(reason, detail))
        await this.#store(cursor)
        this.#missedTold = false
        return undefined
      case "slow-consumer":
      case "server-restart":
        return again(reason, undefined, retryAfterOf(detail))
      case "membership-revoked":
        return { kind: "stop", reason: "forbidden", error: refusal("NotMember") }
      case "token-expired":
        return { kind: "unauthorized", error: refusal("TokenExpired") }
    }
  }

  /** Tells once that events are gone, and drops the cursor. */
  async #skip(gap: Missed): Promise<void> {
    if (!this.#missedTold) call(() => this.#options.handlers.missed?.(gap), this._environment.report)
    this.#missedTold = true
    this.#recent.clear()
    await this.#store(undefined)
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
    let end = () => {}
    const inTime = new Promise<T>((resolve, reject) => {
      const lost = (why: string) => reject(new StreamEnd(failure("silent", new ConnectionClosedError(why))))
      const watch = watchSilence(this._environment.clock, heartbeats ? SILENCE_MS : Infinity, lost)
      this._woken = () => watch._woken(FRESH_MS)
      const forget = onAbort(this._closing.signal, () => reject(new StreamEnd({ kind: "stop", reason: "closed" })))
      coming.then(resolve, reject)
      end = () => {
        watch._end()
        forget()
        this._woken = () => {}
      }
    })
    return inTime.finally(() => end())
  }
}
