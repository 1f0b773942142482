import { useCallback, useSyncExternalStore } from "react"
import type { ConnectionState } from "../connection/connection.js"
import type { RoomEvent } from "../rooms/event.js"
import type { Missed } from "../rooms/retry.js"
import type { Following } from "../connection/follower.js"
import type { FollowOptions, Room, Rooms } from "../rooms/rooms.js"

export interface UseRoomOptions extends Pick<FollowOptions, "wire" | "types" | "onStale"> {
  /** Number of events that are kept. Default: 500. Fixed by the first component that shows the room. */
  max?: number
  /** Where to begin: where the stored cursor is, if the options have one. Fixed by the first component. */
  cursors?: NonNullable<FollowOptions["cursors"]>
}

export interface UsedRoom {
  /** The latest events, the oldest first; the same for all components that show the room. */
  events: readonly RoomEvent[]
  state: ConnectionState
  /** Events that are gone for good, if some are. */
  missed: Missed | undefined
  error: unknown
  room: Room
}

const EVENTS_MAX = 500

/** Follows a room while a component shows it. All components that show a room share one stream. */
export function useRoom(rooms: Rooms, id: string, options: UseRoomOptions = {}): UsedRoom {
  const room = rooms.room(id)
  const key = JSON.stringify([options.wire, options.types, options.onStale])
  const shared = sharedFeed(room, key, options)
  return useSyncExternalStore(
    useCallback(listener => shared.subscribe(listener), [shared]),
    () => shared.snapshot,
    () => shared.snapshot,
  )
}

const feeds = new WeakMap<Room, Map<string, SharedFeed>>()

function sharedFeed(room: Room, key: string, options: UseRoomOptions): SharedFeed {
  const ofRoom = feeds.get(room) ?? new Map<string, SharedFeed>()
  feeds.set(room, ofRoom)
  let feed = ofRoom.get(key)
  if (!feed) ofRoom.set(key, (feed = new SharedFeed(room, options, () => ofRoom.delete(key))))
  return feed
}

/** One stream for all components that show a room. It outlives effects that end and begin in one turn, as StrictMode's do. */
class SharedFeed {
  snapshot: UsedRoom
  readonly #room: Room
  readonly #options: UseRoomOptions
  readonly #ended: () => void
  readonly #listeners = new Set<() => void>()
  #following: Following | undefined

  constructor(room: Room, options: UseRoomOptions, ended: () => void) {
    this.#room = room
    this.#options = options
    this.#ended = ended
    this.snapshot = { events: [], state: { status: "idle" }, missed: undefined, error: undefined, room }
  }

  subscribe(listener: () => void): () => void {
    // A function of its own, as the same one may subscribe twice.
    const own = () => listener()
    this.#listeners.add(own)
    this.#following ??= this.#follow()
    return () => {
      this.#listeners.delete(own)
      queueMicrotask(() => {
        if (this.#listeners.size > 0) return
        this.#following?.close()
        this.#following = undefined
        this.#ended()
      })
    }
  }

  #follow(): Following {
    const { max = EVENTS_MAX, ...options } = this.#options
    const following = this.#room.follow(
      {
        event: event => this.#change({ events: [...this.snapshot.events, event].slice(-max) }),
        missed: missed => this.#change({ missed }),
        state: state => this.#change({ state }),
      },
      options,
    )
    following.done.catch((error: unknown) => this.#change({ error }))
    return following
  }

  #change(change: Partial<UsedRoom>): void {
    this.snapshot = { ...this.snapshot, ...change }
    for (const listener of [...this.#listeners]) listener()
  }
}
