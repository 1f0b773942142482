import { ConnectionClosedError, TidingsError, TimeoutError, UnauthorizedError, type ErrorDetails } from "../connection/errors.js"

/** Codes of the server for a request that failed. */
export type TopicErrorCode =
  | "INVALID_ARGUMENT"
  | "UNIMPLEMENTED"
  | "INVALID_TOPIC"
  | "ACL_SUBSCRIBE"
  | "TOPIC_LIMIT_EXCEEDED"
  | "ADAPTER_ERROR"
  | "CONNECTION_CLOSED"
  | "FAILED_PRECONDITION"
  | "RESOURCE_EXHAUSTED"
  | "UNAUTHENTICATED"
  | "PERMISSION_DENIED"
  | "CANCELLED"
  | "DEADLINE_EXCEEDED"
  | "INTERNAL"

/** The server refused a request. Its `code` is a {@link TopicErrorCode}, or one that this version does not know. */
export class TopicError extends TidingsError {
  /** The topic that the error is about, if the server names one. */
  get topic(): string | undefined {
    return this.details.topic as string | undefined
  }
}

/** The topic is empty, too long, or has a character that is not allowed. */
export class InvalidTopicError extends TopicError {}
/** The token does not allow the subscription. */
export class AclSubscribeError extends TopicError {}
/** More topics than a connection, or subscribers than a topic, may have. */
export class TopicLimitExceededError extends TopicError {}
/** The topic has no history, or a strict verification was not confirmed. */
export class FailedPreconditionError extends TopicError {}
/** Too many or too large frames. */
export class ResourceExhaustedError extends TopicError {}
/** The server or its message bus failed. */
export class AdapterError extends TopicError {}

/** The server ended a subscription: `revoked`, `token`, `expired` or `adapter`. */
export class UnsubscribedError extends TidingsError {
  readonly reason: string

  constructor(topic: string, reason: string) {
    super(`${topic} is unsubscribed: ${reason}`, { code: "UNSUBSCRIBED", details: { topic, reason } })
    this.reason = reason
  }
}

/** A message that its schema does not accept: one that was received, or the arguments of a typed topic. */
export class ValidationError extends TidingsError {
  readonly issues: readonly { readonly message: string; readonly path?: unknown }[]

  constructor(what: string, issues: readonly { readonly message: string; readonly path?: unknown }[]) {
    super(`${what} is not valid: ${issues.map(issue => issue.message).join("; ")}`, { code: "VALIDATION", details: { issues } })
    this.issues = issues
  }
}

/** What the server says when it refuses. */
export interface Refusal extends ErrorDetails {
  code: string
  message: string
}

const classes: Record<string, new (message: string, more: ErrorDetails) => TidingsError> = {
  INVALID_TOPIC: InvalidTopicError,
  ACL_SUBSCRIBE: AclSubscribeError,
  TOPIC_LIMIT_EXCEEDED: TopicLimitExceededError,
  FAILED_PRECONDITION: FailedPreconditionError,
  RESOURCE_EXHAUSTED: ResourceExhaustedError,
  ADAPTER_ERROR: AdapterError,
  UNAUTHENTICATED: UnauthorizedError,
  CONNECTION_CLOSED: ConnectionClosedError,
  DEADLINE_EXCEEDED: TimeoutError,
}

/** The error of a class of its own for what the server says. */
export function refusal(said: Refusal): TidingsError {
  return new (classes[said.code] ?? TopicError)(said.message, said)
}
