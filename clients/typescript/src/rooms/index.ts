/**
 * Rooms: follow a conversation without gaps and without duplicates, write to it, remember what was seen.
 *
 * Read {@link Rooms} and {@link Room}; what happens when a stream ends is the table in `docs/clients-rust.md`.
 */
export { Room, Rooms, type FollowOptions, type RoomsOptions } from "./rooms.js"
export type { RoomHandlers } from "./feed.js"
export type { Following } from "../connection/follower.js"
export { inMemory, inStorage, type CursorStore } from "./cursors.js"
export type { RoomEvent, RoomInfo } from "./event.js"
export type { Missed } from "./retry.js"
export type { Seen } from "./seen.js"
export type { Wire } from "./stream.js"
export type { NewEvent, Written } from "./writer.js"
export { ConnectionClosedError, HttpError, TidingsError, TimeoutError, UnauthorizedError } from "../connection/errors.js"
export type { ConnectionState, Ending } from "../connection/connection.js"
export type { Environment } from "../connection/environment.js"
export type { TokenProvider, TokenReason } from "../connection/token.js"
