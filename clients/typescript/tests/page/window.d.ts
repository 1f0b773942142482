import type { Topics } from "../../src/topics/index.js"

declare global {
  /** What a page of the tests tells. */
  interface Window {
    /** Frames that it has sent on its WebSockets. */
    sent: { type: string; payload: any }[]
    /** Requests that it has made. */
    fetched: string[]
    topics: Topics
  }
}
