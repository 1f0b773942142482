import { environment, type Environment } from "./environment.js"
import { call } from "./listeners.js"
import { TokenSource, type TokenProvider } from "./token.js"

/** What the options of every client have. */
export interface ClientOptions {
  token?: TokenProvider
  /** Errors that belong to no call: a token that could not be renewed, a frame that was not understood. Default: reported. */
  onError?(error: unknown): void
  environment?: Partial<Environment>
}

/** What the parts of a client share. */
export interface Parts {
  environment: Environment
  token: TokenSource
  onError(error: unknown): void
}

export function parts(options: ClientOptions): Parts {
  const own = environment(options.environment)
  const { report } = own
  return { environment: own, token: new TokenSource(options.token, own), onError: error => call(() => (options.onError ?? report)(error), report) }
}
