import type { Following } from "./follower.js"
import { Inbox } from "./inbox.js"

/**
 * What a reader gets, for a `for await` loop. The reader goes on when the next one is asked for; leaving the loop closes it, and
 * what was got last does not count as handled.
 */
export function iterate<T>(follow: (handle: (item: T) => Promise<void>) => Following): AsyncIterableIterator<T> {
  let handled: { resolve(): void; reject(why: unknown): void } | undefined
  const inbox = new Inbox<T>(() => {
    following.close()
    handled?.reject(new Error("the loop was left"))
  })
  const following = follow(
    item =>
      new Promise<void>((resolve, reject) => {
        handled = { resolve, reject }
        inbox.push(item)
      }),
  )
  following.done.then(() => inbox.end(), (error: unknown) => inbox.end({ error }))
  let given = false
  const next = () => {
    // Whoever asks for the next one has handled the one before.
    if (given) handled?.resolve()
    given = true
    return inbox.next()
  }
  return { next, return: () => inbox.return(), [Symbol.asyncIterator]: inbox[Symbol.asyncIterator] }
}
