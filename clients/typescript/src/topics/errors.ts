import { ConnectionClosedError, TidingsError, TimeoutError, UnauthorizedError } from "../connection/errors.js"

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
  /** Time after which the request may be repeated. */
  readonly retryAfterMs: number | undefined

  constructor(said: Refusal) {
    super(said.code, said.message, { retryable: said.retryable ?? false, ...(said.details && { details: said.details }) })
    this.retryAfterMs = said.retryAfterMs
  }

  /** The topic that the error is about, if the server names one. */
  get topic(): string | undefined {
    return typeof this.details.topic === "string" ? this.details.topic : undefined
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
    super("UNSUBSCRIBED", `the server ended the subscription to ${topic}: ${reason}`, { details: { topic, reason } })
    this.reason = reason
  }
}

/** A message that its schema does not accept: one that was received, or the arguments of a typed topic. */
export class ValidationError extends TidingsError {
  readonly issues: readonly { readonly message: string; readonly path?: unknown }[]

  constructor(what: string, issues: readonly { readonly message: string; readonly path?: unknown }[]) {
    super("VALIDATION", `${what} is not valid: ${issues.map(issue => issue.message).join("; ")}`, { details: { issues } })
    this.issues = issues
  }
}

export interface Refusal {
  code: string
  message: string
  retryable?: boolean
  details?: object
  retryAfterMs?: number
}

const classes: Record<string, new (said: Refusal) => TopicError> = {
  INVALID_TOPIC: InvalidTopicError,
  ACL_SUBSCRIBE: AclSubscribeError,
  TOPIC_LIMIT_EXCEEDED: TopicLimitExceededError,
  FAILED_PRECONDITION: FailedPreconditionError,
  RESOURCE_EXHAUSTED: ResourceExhaustedError,
  ADAPTER_ERROR: AdapterError,
}

/** The error of a class of its own for what the server says. */
export function refusal(said: Refusal): TidingsError {
  if (said.code === "UNAUTHENTICATED") return new UnauthorizedError(said.message)
  if (said.code === "CONNECTION_CLOSED") return new ConnectionClosedError(said.message)
  if (said.code === "DEADLINE_EXCEEDED") return new TimeoutError(said.message)
  return new (classes[said.code] ?? TopicError)(said)
}
