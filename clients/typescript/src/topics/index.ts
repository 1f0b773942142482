/**
 * Topics: subscribe to names on one WebSocket, publish to them, and come back by yourself.
 *
 * Read {@link Topics}, then {@link message} and {@link topic} for messages and topics with types.
 */
export { Topics, type LocalStatus, type TopicsOptions } from "./topics.js"
export type { Handlers, ListenOptions, Subscription } from "./subscription.js"
export type { Counts, MutateOptions, Restored } from "./reconciler.js"
export type {
  Member,
  Message,
  Outgoing,
  Presence,
  PresenceChange,
  PublishCapability,
  PublishErrorCode,
  PublishOptions,
  PublishResult,
  VerifyResult,
} from "./message.js"
export { message, topic, type InputOf, type MessageDefinition, type OutputOf, type StandardSchema, type TopicDefinition } from "./schema.js"
export type { Position } from "./wire.js"
export {
  AclSubscribeError,
  AdapterError,
  FailedPreconditionError,
  InvalidTopicError,
  ResourceExhaustedError,
  TopicError,
  TopicLimitExceededError,
  UnsubscribedError,
  ValidationError,
  type TopicErrorCode,
} from "./errors.js"
export { ConnectionClosedError, TidingsError, TimeoutError, UnauthorizedError } from "../connection/errors.js"
export type { ConnectionState, Ending } from "../connection/connection.js"
export type { Clock } from "../connection/clock.js"
export type { Environment } from "../connection/environment.js"
export type { TokenProvider, TokenReason } from "../connection/token.js"
