/**
 * Entities: know when what a page has cached of a database is not valid any more.
 *
 * Read {@link Entities}. What was invalidated is fetched again by the application, over its own API.
 */
export { Entities, type EntitiesOptions, type Watch, type WatchHandlers } from "./entities.js"
export type { Action, Change, Denied, Invalidation, Resync } from "./wire.js"
export { TidingsError } from "../connection/errors.js"
export type { ConnectionState, Ending } from "../connection/connection.js"
export type { TokenProvider, TokenReason } from "../connection/token.js"
