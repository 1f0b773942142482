import type { Environment } from "../connection/environment.js"
import type { Http } from "../connection/http.js"
import { retrying } from "../connection/retrying.js"

/** Read positions of a user in a room. */
export interface Seen {
  /** The device's position or, without a device, the highest; null if there is none. */
  cursor: string | null
  devices: Record<string, string>
  updatedAt: number
}

/** Time in which further positions replace the one that waits. */
const DEBOUNCE_MS = 1_000
/** Attempts to store a position; a later one replaces it anyway. */
const ATTEMPTS_MAX = 5

/** Stores the read position of a device: not for every event, and always the latest. */
export class SeenMarker {
  readonly #http: Http
  readonly #segments: string[]
  readonly #device: string | undefined
  readonly #environment: Environment
  #latest: { cursor: string; force: boolean } | undefined
  #sending: Promise<void> | undefined
  #cancel: (() => void) | undefined
  #unhide = () => {}

  constructor(http: Http, room: string, device: string | undefined, environment: Environment) {
    this.#http = http
    this.#segments = ["rooms", room, "seen"]
    this.#device = device
    this.#environment = environment
  }

  /** Takes a position, which replaces the one that waits. `force` moves it back. */
  _mark(cursor: string, force: boolean): void {
    this.#latest = { cursor, force: force || (this.#latest?.force ?? false) }
    this.#cancel ??= this.#environment.clock.after(DEBOUNCE_MS, () => void this._flush())
    if (globalThis.document) {
      this.#unhide()
      const hidden = () => void this._flush(true)
      addEventListener("pagehide", hidden)
      this.#unhide = () => removeEventListener("pagehide", hidden)
    }
  }

  /** Sends what waits now. Resolves when it is stored, or given up, which is reported. */
  async _flush(keepalive = false): Promise<void> {
    this.#cancel?.()
    this.#cancel = undefined
    this.#unhide()
    while (this.#sending && !keepalive) await this.#sending
    const position = this.#latest
    if (!position) return
    this.#latest = undefined
    this.#sending = this.#send(position, keepalive).finally(() => (this.#sending = undefined))
    await this.#sending
  }

  async #send({ cursor, force }: { cursor: string; force: boolean }, keepalive: boolean): Promise<void> {
    const body = { cursor, deviceId: this.#device, ...(force && { force }) }
    let left = ATTEMPTS_MAX
    try {
      // A later position makes this one worthless.
      await retrying(this.#environment, () => this.#http._json("POST", this.#segments, { body, keepalive }), () => !this.#latest && --left > 0)
    } catch (error) {
      if (!this.#latest) this.#environment.report(error)
    }
  }
}
