/** Reads the talks of `testing/conformance/cases`: what clients say, what the server answers, what an application hears. */
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { after } from "node:test"
import { Entities } from "../src/entities/index.js"
import { Sessions } from "../src/sessions/index.js"
import { Topics, type Subscription } from "../src/topics/index.js"
import type { Environment } from "../src/connection/environment.js"
import type { Watch } from "../src/entities/index.js"
import { Proxy } from "./proxy.js"
import { until, type Server } from "./server.js"

export interface Frame {
  type: string
  meta?: Record<string, unknown>
  payload?: any
}

export interface Other {
  method: string
  path: string
  body?: unknown
  /** Content type, where there is no body. */
  type?: string
}

export interface Step {
  call?: [name: string, ...args: any[]]
  sends?: Frame[]
  request?: { method: string; path: string; body?: unknown }
  answer?: { status: number; body?: object; headers?: Record<string, string> }
  other?: Other
  server?: Frame[]
  gives?: unknown
  throws?: object
  hears?: unknown[]
  reconnect?: true
  away?: Other[]
}

export interface Talk {
  name: string
  /** What not every server has. */
  needs?: "patterns" | "history" | "presence"
  steps: Step[]
}

export function cases<T>(path: string): T {
  return JSON.parse(readFileSync(new URL(`../../../../testing/conformance/cases/${path}`, import.meta.url), "utf8")) as T
}

/** An application of a talk: it is called as the steps say, and remembers what it hears. */
export interface Application {
  call(name: string, ...args: any[]): unknown
  readonly heard: unknown[]
  readonly status: string
  close(): void
}

export interface Where {
  server: string
  project: string
  environment: Partial<Environment>
}

export function topicsApplication(where: Where): Application {
  const topics = new Topics(where)
  topics.connect().catch(() => {})
  const heard: unknown[] = []
  const listeners = new Map<string, Subscription>()
  return {
    heard,
    get status() {
      return topics.state.status
    },
    close: () => topics.close(),
    call(name, ...args) {
      if (name === "listen") {
        const listener = topics.listen(args[0], ({ topic, type, payload }) => heard.push([topic, type, payload]))
        listeners.set(args[0], listener)
        return listener.ready
      }
      if (name === "close") return listeners.get(args[0])!.close()
      if (name !== "update") return (topics as any)[name](...args)
      const change = args[0] as { add: string[]; delete: string[] }
      return topics.update(draft => {
        for (const topic of change.delete) draft.delete(topic)
        for (const topic of change.add) draft.add(topic)
      })
    },
  }
}

export function entitiesApplication(where: Where): Application {
  const entities = new Entities(where)
  const heard: unknown[] = []
  const watches = new Map<string, Watch>()
  return {
    heard,
    get status() {
      return entities.state.status
    },
    close: () => entities.close(),
    call(name, code, ...args) {
      if (name !== "watch") return (watches.get(code) as any)[name](...args)
      const watch = entities.watch(code, args[0], {
        invalidate: ({ entityCode, changes }) => heard.push(["invalidate", entityCode, changes.map(each => [each.entityId, each.action, each.version])]),
        resync: ({ entityCode, reason }) => heard.push(["resync", entityCode, reason]),
        denied: ({ entityCode, entityId, code }) => heard.push(["denied", entityCode, entityId, code]),
      })
      watches.set(code, watch)
      return watch.ready
    },
  }
}

export function sessionsCall(where: Where): (name: string, ...args: any[]) => Promise<unknown> {
  const sessions = new Sessions(where)
  return (name, id, ...args) => (name === "publish" ? sessions.publish(id, args[0]) : (sessions.session(id) as any)[name](...args))
}

/** Whether a value has all that is expected; it may have more members. Texts that begin with `$$` stand for any. */
export function has(value: any, expected: any): boolean {
  if (typeof expected === "string" && expected.startsWith("$$")) return value !== undefined
  if (typeof expected !== "object" || expected === null) return Object.is(value, expected)
  if (Array.isArray(expected)) return Array.isArray(value) && value.length === expected.length && expected.every((each, index) => has(value[index], each))
  return typeof value === "object" && value !== null && Object.entries(expected).every(([name, each]) => has(value[name], each))
}

/** What became of a call, to be compared when the server has answered. */
export function outcomeOf(promise: unknown): Promise<{ gave: unknown } | { threw: any }> {
  return Promise.resolve(promise).then(gave => ({ gave }), (threw: unknown) => ({ threw }))
}

export function compare(outcome: { gave: unknown } | { threw: any }, { gives, throws }: Step, what: string): void {
  if (throws) assert.ok("threw" in outcome && has(outcome.threw, throws), `${what} throws ${JSON.stringify(throws)}, not ${JSON.stringify(outcome)}`)
  else assert.ok("gave" in outcome && (gives === undefined || has(outcome.gave, gives)), `${what} gives ${JSON.stringify(gives)}, not ${JSON.stringify(outcome)}`)
}

let projects = 0

/** A project that no talk has used. */
export function newProject(): string {
  return `p${++projects}`
}

/** Somebody else's request. */
export async function request(server: Server, project: string, { method, path, body, type }: Other): Promise<void> {
  const init = { method, headers: { "content-type": type ?? "application/json" }, body: body === undefined ? null : JSON.stringify(body) }
  const response = await fetch(`${server.url}/v1/${project}/${path}`, init)
  assert.ok(response.ok, `${method} ${path}: ${response.status}`)
}

/** A talk with the real server, which nobody tells what to say. */
export async function real(server: Server, talk: Talk, begin: (where: Where) => Application): Promise<void> {
  const project = newProject()
  const proxy = await Proxy.start(server.url)
  const application = begin({ server: proxy.url, project, environment: {} })
  after(() => application.close())
  for (const [index, step] of talk.steps.entries()) {
    const what = `${talk.name}, step ${index}`
    if (step.call) compare(await outcomeOf(application.call(...step.call)), step, what)
    if (step.other) await request(server, project, step.other)
    if (step.reconnect) {
      proxy.cut()
      await until(() => application.status === "waiting")
      for (const each of step.away ?? []) await request(server, project, each)
      await until(() => application.status === "connected")
    }
    const hears = step.hears ?? []
    await until(() => application.heard.length >= hears.length)
    assert.deepEqual(application.heard.splice(0), hears, what)
  }
  application.close()
}
