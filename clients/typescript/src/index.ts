/** Everything but the hooks for React. Import from the parts, such as `tidings-client/topics`, to bundle only what is used. */
export * from "./topics/index.js"
export { Room, Rooms, inMemory, inStorage, type CursorStore, type Missed, type RoomEvent, type RoomHandlers, type RoomInfo, type RoomsOptions } from "./rooms/index.js"
export { Entities, type EntitiesOptions, type Invalidation, type Resync, type Watch, type WatchHandlers } from "./entities/index.js"
export { Session, Sessions, type Envelope, type SessionHandlers, type SessionsOptions } from "./sessions/index.js"
export { Hooks, verify, VerificationError, type Delivery, type Hook, type HookEvent, type HooksOptions } from "./hooks/index.js"
export { HttpError } from "./connection/errors.js"
