/**
 * Sessions: one durable stream that receives what many streams receive.
 *
 * Reading needs the package `@durable-streams/client`, a peer dependency. Read {@link Sessions} and {@link Session}.
 */
export { Session, Sessions, type Published, type SessionsOptions, type SessionStatus, type Subscribed } from "./sessions.js"
export type { Envelope, FollowingSession as Following, FollowOptions, SessionHandlers } from "./reader.js"
export { ConnectionClosedError, HttpError, TidingsError } from "../connection/errors.js"
export type { ConnectionState, Ending } from "../connection/connection.js"
export type { TokenProvider, TokenReason } from "../connection/token.js"
