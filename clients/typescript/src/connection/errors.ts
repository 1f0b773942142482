/** Any error of this package. `code` is for programs, `message` for people. */
export class TidingsError extends Error {
  readonly code: string
  /** Whether the same request may succeed later. */
  readonly retryable: boolean
  /** What the server says beside the message. */
  readonly details: Readonly<Record<string, unknown>>

  constructor(code: string, message: string, more: { retryable?: boolean; details?: object; cause?: unknown } = {}) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause })
    this.name = new.target.name
    this.code = code
    this.retryable = more.retryable ?? false
    this.details = (more.details ?? {}) as Record<string, unknown>
  }
}

/** The connection is closed, or was lost before the answer came. */
export class ConnectionClosedError extends TidingsError {
  constructor(message: string, more: { retryable?: boolean; cause?: unknown } = {}) {
    super("CONNECTION_CLOSED", message, { retryable: true, ...more })
  }
}

/** No token could be got, or the server refuses the one it was given. */
export class UnauthorizedError extends TidingsError {
  constructor(message: string, more: { details?: object; cause?: unknown } = {}) {
    super("UNAUTHENTICATED", message, more)
  }
}

/** No answer in time. What was asked for may have happened. */
export class TimeoutError extends TidingsError {
  constructor(message: string) {
    super("DEADLINE_EXCEEDED", message, { retryable: true })
  }
}

/** The server refused an HTTP request. */
export class HttpError extends TidingsError {
  /** HTTP status. */
  readonly status: number
  /** How long the server asks to wait. */
  readonly retryAfterMs: number | undefined

  constructor(status: number, code: string, message: string, more: { details?: object; retryAfterMs?: number | undefined } = {}) {
    super(code, message, { retryable: isTransient(status), ...(more.details && { details: more.details }) })
    this.status = status
    this.retryAfterMs = more.retryAfterMs
  }
}

/** Whether a request that was answered with this status may succeed later. */
export function isTransient(status: number): boolean {
  return status >= 500 || status === 408 || status === 425 || status === 429
}

/** What `signal.throwIfAborted` throws. */
export function abortReason(signal: AbortSignal): unknown {
  return signal.reason ?? new DOMException("This operation was aborted", "AbortError")
}
