/** What an error says beside its message. */
export interface ErrorDetails {
  code?: string | undefined
  retryable?: boolean | undefined
  details?: object | undefined
  retryAfterMs?: number | undefined
  cause?: unknown
}

/** Any error of this package. `code` is for programs, `message` for people. */
export class TidingsError extends Error {
  readonly code: string
  /** Whether the same request may succeed later. */
  readonly retryable: boolean
  /** What the server says beside the message. */
  readonly details: Readonly<Record<string, unknown>>
  /** How long the server asks to wait before the request is repeated. */
  readonly retryAfterMs: number | undefined

  constructor(message: string, { code = "ERROR", retryable = false, details = {}, retryAfterMs, ...cause }: ErrorDetails = {}) {
    super(message, cause)
    this.name = new.target.name
    this.code = code
    this.retryable = retryable
    this.details = details as Record<string, unknown>
    this.retryAfterMs = retryAfterMs
  }
}

/** The connection is closed, or was lost before the answer came. */
export class ConnectionClosedError extends TidingsError {
  constructor(message: string, more?: ErrorDetails) {
    super(message, { code: "CONNECTION_CLOSED", retryable: true, ...more })
  }
}

/** No token could be got, or the server refuses the one it was given. */
export class UnauthorizedError extends TidingsError {
  constructor(message: string, more?: ErrorDetails) {
    super(message, { code: "UNAUTHENTICATED", ...more })
  }
}

/** No answer in time. What was asked for may have happened. */
export class TimeoutError extends TidingsError {
  constructor(message: string, more?: ErrorDetails) {
    super(message, { code: "DEADLINE_EXCEEDED", retryable: true, ...more })
  }
}

/** The server refused an HTTP request. */
export class HttpError extends TidingsError {
  /** HTTP status. */
  readonly status: number

  constructor(status: number, message: string, more: ErrorDetails) {
    super(message, { retryable: isTransient(status), ...more })
    this.status = status
  }
}

/** Whether a request that was answered with this status may succeed later. */
export function isTransient(status: number): boolean {
  return status >= 500 || [408, 425, 429].includes(status)
}
