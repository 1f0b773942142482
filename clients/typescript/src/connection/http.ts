import { onAbort } from "./abort.js"
import { address, type Target } from "./address.js"
import { retryAfterMs } from "./backoff.js"
import type { Environment } from "./environment.js"
import { HttpError, TimeoutError } from "./errors.js"
import type { Parts } from "./parts.js"
import type { TokenSource } from "./token.js"
import { within } from "./within.js"

/** A token is not used for requests in the last half minute before it expires. */
const EXPIRY_MARGIN_MS = 30_000

export interface HttpOptions {
  query?: Record<string, string | number | boolean | undefined>
  /** Sent as JSON. */
  body?: unknown
  headers?: Record<string, string>
  signal?: AbortSignal | undefined
  /** Longest time until the answer begins, and then until it is complete. Default: 15 s. */
  timeoutMs?: number
  /** Lets the request outlive the page. */
  keepalive?: boolean
}

/** A connection that is half-open answers never. */
const ANSWER_TIMEOUT_MS = 15_000

/** Requests to a project over HTTP, with a token. */
export class Http {
  readonly #target: Target
  readonly #token: TokenSource
  readonly #environment: Environment
  #current: Promise<string | null> | undefined
  #expiresAt = Infinity

  constructor(target: Target, { token, environment }: Parts) {
    this.#target = target
    this.#token = token
    this.#environment = environment
  }

  /** URL of a path of the project. */
  _url(segments: string[], query: HttpOptions["query"] = {}): URL {
    const url = address(this.#target, ...segments)
    for (const [name, value] of Object.entries(query)) if (value !== undefined) url.searchParams.set(name, String(value))
    return url
  }

  /** Sends a request; resolves with the JSON of a success, or undefined if it has no body. Throws {@link HttpError}. */
  async _json<T>(method: string, segments: string[], options: HttpOptions = {}): Promise<T> {
    const response = await this._send(method, segments, options)
    const text = await within(response.text(), this.#environment.clock, { timeoutMs: options.timeoutMs ?? ANSWER_TIMEOUT_MS })
    return (text === "" ? undefined : JSON.parse(text)) as T
  }

  /** Sends a request; resolves with a response that is a success. A token that is refused is replaced once. */
  async _send(method: string, segments: string[], options: HttpOptions = {}): Promise<Response> {
    let response = await this.#fetch(method, segments, options, "connect")
    if (response.status === 401 && this.#token._renewable) response = await this.#fetch(method, segments, options, "refused")
    if (!response.ok) throw await httpError(response, this.#environment.clock.now())
    return response
  }

  async #fetch(method: string, segments: string[], options: HttpOptions, reason: "connect" | "refused"): Promise<Response> {
    const { query, body, signal, keepalive = false, timeoutMs = ANSWER_TIMEOUT_MS } = options
    const token = await this.#bearer(reason)
    const headers: Record<string, string> = {}
    if (body !== undefined) headers["content-type"] = "application/json"
    if (token !== null) headers.authorization = `Bearer ${token}`
    const controller = new AbortController()
    const forget = onAbort(signal, () => controller.abort(signal!.reason))
    const cancel = this.#environment.clock.after(timeoutMs, () => controller.abort(new TimeoutError(`no answer within ${timeoutMs} ms`)))
    try {
      return await this.#environment.fetch(this._url(segments, query).href, {
        method,
        body: body === undefined ? null : JSON.stringify(body),
        headers: { ...headers, ...options.headers },
        keepalive,
        signal: controller.signal,
        redirect: "error",
      })
    } finally {
      cancel()
      forget()
    }
  }

  #bearer(reason: "connect" | "refused"): Promise<string | null> {
    if (reason === "refused" || this.#environment.clock.now() > this.#expiresAt - EXPIRY_MARGIN_MS) this.#current = undefined
    this.#current ??= this.#token._get(reason).then(
      token => {
        this.#expiresAt = expiryOf(token)
        return token
      },
      (error: unknown) => {
        this.#current = undefined
        throw error
      },
    )
    return this.#current
  }
}

/** The time at which a JSON Web Token expires, in milliseconds; infinite for what is none. */
function expiryOf(token: string | null): number {
  try {
    const { exp } = JSON.parse(atob(token!.split(".")[1]!.replace(/-/g, "+").replace(/_/g, "/"))) as { exp?: number }
    return typeof exp === "number" ? exp * 1000 : Infinity
  } catch {
    return Infinity
  }
}

/** The error in a response, in whichever of the server's forms it is. */
export async function httpError(response: Response, now: number): Promise<HttpError> {
  const { status, headers } = response
  // Something between the client and the server may have answered.
  const body = (await response.json().catch(() => null)) as Record<string, unknown> | null
  const { error } = body ?? {}
  const said = { ...(typeof error === "string" && { code: error, message: error }), ...body, ...(typeof error === "object" && error) } as Record<string, unknown>
  const { code = `http_${status}`, message = `the server answers ${status}`, detail, details = detail, retryAfter } = said
  return new HttpError(status, String(message), {
    code: String(code),
    details: (details ?? {}) as object,
    retryAfterMs: retryAfterMs(retryAfter == null ? headers.get("retry-after") : String(retryAfter), now),
  })
}
