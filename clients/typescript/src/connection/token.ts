import type { Environment } from "./environment.js"
import type { UnauthorizedError } from "./errors.js"
import { within } from "./within.js"

/** Why a token is asked for: for a new connection, because the last one expires soon, or because it was refused. */
export type TokenReason = "connect" | "expiring" | "refused"

/**
 * A token, or a function that gets one. The function is called for every connection and before a token expires; it may
 * return a token it has kept. `null` connects without a token. Throwing {@link UnauthorizedError} closes the client for good,
 * any other error is retried.
 */
export type TokenProvider =
  | string
  | ((asked: { reason: TokenReason; signal: AbortSignal }) => string | null | Promise<string | null>)

/** Longest time that a provider may take. */
const PROVIDER_TIMEOUT_MS = 30_000

/** Asks the application's provider, one call at a time: who asks meanwhile gets the same answer. */
export class TokenSource {
  readonly #provider: TokenProvider | undefined
  readonly #environment: Environment
  #asking: Promise<string | null> | undefined

  constructor(provider: TokenProvider | undefined, environment: Environment) {
    this.#provider = provider
    this.#environment = environment
  }

  /** Whether asking again may give another token. */
  get _renewable(): boolean {
    return typeof this.#provider === "function"
  }

  _get(reason: TokenReason): Promise<string | null> {
    const provider = this.#provider
    if (typeof provider !== "function") return Promise.resolve(provider ?? null)
    this.#asking ??= this.#ask(provider, reason).finally(() => (this.#asking = undefined))
    return this.#asking
  }

  async #ask(provider: Exclude<TokenProvider, string>, reason: TokenReason): Promise<string | null> {
    const controller = new AbortController()
    try {
      const asked = Promise.resolve(provider({ reason, signal: controller.signal }))
      return await within(asked, this.#environment.clock, { timeoutMs: PROVIDER_TIMEOUT_MS })
    } catch (error) {
      controller.abort(error)
      throw error
    }
  }
}
