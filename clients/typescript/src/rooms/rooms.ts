import type { Target } from "../connection/address.js"
import type { Environment } from "../connection/environment.js"
import type { Following } from "../connection/follower.js"
import { Http } from "../connection/http.js"
import { iterate } from "../connection/iterate.js"
import { parts, type Parts } from "../connection/parts.js"
import type { TokenProvider } from "../connection/token.js"
import { within } from "../connection/within.js"
import type { CursorStore } from "./cursors.js"
import type { RoomEvent } from "./event.js"
import { Feed, type RoomHandlers } from "./feed.js"
import { SeenMarker, type Seen } from "./seen.js"
import type { Wire } from "./stream.js"
import { Writer, type NewEvent, type Written } from "./writer.js"

export interface RoomsOptions extends Target {
  token?: TokenProvider
  /** Id of the user's device, for read positions. */
  device?: string
  /** Closes all readers. */
  signal?: AbortSignal
  environment?: Partial<Environment>
}

export interface FollowOptions {
  /** Where the cursor is kept. Default: in memory, from the head. */
  cursors?: CursorStore
  /** Default: `sse`. */
  wire?: Wire
  /** Types of events to receive. Default: all. */
  types?: string[]
  /** What the server does with a cursor whose events are gone: refuse it, or begin at the head or at the oldest event. */
  onStale?: "error" | "head" | "oldest"
  /** Sends `caught-up` when all stored events have been received. */
  caughtUp?: boolean
  signal?: AbortSignal
}

/** Rooms of a project. */
export class Rooms {
  readonly #parts: RoomParts
  readonly #rooms = new Map<string, Room>()

  constructor(options: RoomsOptions) {
    const shared = parts(options)
    this.#parts = { ...shared, http: new Http(options, shared), device: options.device, signal: options.signal }
  }

  /** A room; always the same object for the same id. */
  room(id: string): Room {
    let room = this.#rooms.get(id)
    if (!room) this.#rooms.set(id, (room = new Room(id, this.#parts)))
    return room
  }
}

interface RoomParts extends Parts {
  http: Http
  device: string | undefined
  signal: AbortSignal | undefined
}

/** A room: follow it, write to it, remember what was seen. */
export class Room {
  readonly id: string
  readonly #parts: RoomParts
  readonly #writer: Writer
  readonly #seen: SeenMarker

  constructor(id: string, parts: RoomParts) {
    this.id = id
    this.#parts = parts
    this.#writer = new Writer(parts.http, id, parts.environment)
    this.#seen = new SeenMarker(parts.http, id, parts.device, parts.environment)
  }

  /** Follows the room, from the stored cursor or from the head. Events come one after the other, each once. */
  follow(handlers: RoomHandlers | ((event: RoomEvent) => unknown), { cursors, wire = "sse", signal, types, onStale, caughtUp }: FollowOptions = {}): Following {
    const { http, token, environment, device } = this.#parts
    const query = { types: types?.join(","), deviceId: device, onStale, caughtUp: caughtUp ? 1 : undefined }
    const feed = new Feed({
      url: http._url(["rooms", this.id, "events"], query),
      wire,
      cursors,
      token,
      environment,
      handlers: typeof handlers === "function" ? { event: handlers } : handlers,
    })
    return feed._start(signal, this.#parts.signal)
  }

  /**
   * The events for a `for await` loop. An event's cursor is stored when the next one is asked for; leaving the loop does not
   * store that of the last one.
   */
  events(options: FollowOptions = {}): AsyncIterableIterator<RoomEvent> {
    return iterate(handle => this.follow(handle, options))
  }

  /** Writes events, all or none, and once even if the request has to be repeated. */
  write(events: NewEvent | NewEvent[], options?: { signal?: AbortSignal; timeoutMs?: number }): Promise<Written[]> {
    return this.#writer._write(events, options)
  }

  /** Tells the others that the user is typing. Live only: not stored, not repeated. */
  async typing(payload: object = {}, options?: { signal?: AbortSignal }): Promise<void> {
    await this.#writer._write({ type: "typingEvent", payload }, options)
  }

  /** Marks what the user has seen. Sent after a second, the latest only. */
  markSeen(cursor: string, { force = false } = {}): void {
    this.#seen._mark(cursor, force)
  }

  /** Sends what was marked now. The signal ends the wait for it, and not the request. */
  flushSeen({ signal }: { signal?: AbortSignal } = {}): Promise<void> {
    return within(this.#seen._flush(), this.#parts.environment.clock, { signal })
  }

  /** Read positions of the user in this room. */
  seen({ signal }: { signal?: AbortSignal } = {}): Promise<Seen> {
    return this.#parts.http._json("GET", ["rooms", this.id, "seen"], { query: { deviceId: this.#parts.device }, signal })
  }

  /** Adds and removes members, for tokens with the scope `manage`. Creates the room. */
  changeMembers({ add = [], remove = [], signal }: { add?: string[]; remove?: string[]; signal?: AbortSignal }): Promise<{ members: string[] }> {
    return this.#parts.http._json("POST", ["rooms", this.id, "members"], { body: { add, remove }, signal })
  }

  /** A page of the members. */
  members({ limit, cursor, signal }: { limit?: number; cursor?: string; signal?: AbortSignal } = {}): Promise<{ members: string[]; nextCursor?: string }> {
    return this.#parts.http._json("GET", ["rooms", this.id, "members"], { query: { limit, cursor }, signal })
  }
}
