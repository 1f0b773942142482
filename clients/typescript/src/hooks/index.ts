/**
 * Hooks: {@link verify} deliveries in an endpoint, and manage hooks with {@link Hooks}.
 */
export { verify, VerificationError, type Delivery, type HookEvent, type HookRequest, type VerifyOptions } from "./verify.js"
export {
  Hooks,
  type Attempt,
  type Condition,
  type DeadLetter,
  type DeliveryRecord,
  type DeliveryStatus,
  type Hook,
  type HookSettings,
  type HooksOptions,
  type NewHookEvent,
} from "./hooks.js"
export { HttpError, TidingsError } from "../connection/errors.js"
export type { TokenProvider, TokenReason } from "../connection/token.js"
