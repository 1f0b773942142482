/**
 * Hooks for React 18 and 19. Right under StrictMode: effects that run twice make one subscription, and lose nothing.
 *
 * A client is made once, outside of components, and passed to the hooks.
 */
export { useTopic, usePresence, type UsedTopic, type UseTopicOptions } from "./topics.js"
export { useRoom, type UsedRoom, type UseRoomOptions } from "./rooms.js"
export { useConnection, useInvalidation } from "./entities.js"
