import assert from "node:assert/strict"
import { test } from "node:test"
import { QueryClient, QueryObserver } from "@tanstack/query-core"
import { resyncOnChange } from "../../../examples/adapters/rxdb.js"
import { invalidateQueries } from "../../../examples/adapters/tanstack-query.js"
import { Entities } from "../src/entities/index.js"
import { FakeNetwork, turn } from "./fakes.js"

async function subscribed(watch: (entities: Entities) => unknown) {
  const network = new FakeNetwork()
  const entities = new Entities({ server: "http://x", environment: network.environment })
  watch(entities)
  await turn()
  await network.socket.opens()
  await network.socket.says({ type: "CONNECTED", payload: {} })
  const [request] = network.socket.frames()
  await network.socket.says({ type: "SUBSCRIBED", payload: { entityCode: "task", requestId: request?.payload.requestId, cursor: "c1" } })
  const changes = (...list: [id: string, action: string, version: number][]) =>
    network.socket.says({ type: "INVALIDATE", payload: { entityCode: "task", changes: list.map(([entityId, action, version]) => ({ entityId, action, version })) } })
  return { network, changes }
}

/** Queries that count how often they were fetched. */
async function observed() {
  const queries = new QueryClient()
  const fetched: string[] = []
  for (const queryKey of [["task", "1"], ["task", "2"], ["task", "list"], ["user", "1"]]) {
    new QueryObserver(queries, { queryKey, staleTime: Infinity, queryFn: () => (fetched.push(queryKey.join(" ")), 1) }).subscribe(() => {})
  }
  await turn()
  fetched.splice(0)
  return { queries, fetched }
}

test("a change fetches the queries of the entity and the lists again, and no others", async t => {
  const { queries, fetched } = await observed()
  t.after(() => queries.clear())
  const { changes } = await subscribed(entities => invalidateQueries(entities, queries, { entityCode: "task" }))
  await changes(["1", "UPDATE", 1])
  assert.deepEqual(fetched.splice(0).sort(), ["task 1", "task list"])
  await changes(["2", "DELETE", 2])
  assert.deepEqual(fetched, ["task list"])
  assert.equal(queries.getQueryData(["task", "2"]), undefined)
})

test("a resync fetches everything of the type again", async t => {
  const { queries, fetched } = await observed()
  t.after(() => queries.clear())
  const { network } = await subscribed(entities => invalidateQueries(entities, queries, { entityCode: "task" }))
  await network.socket.says({ type: "RESYNC", payload: { reason: "overflow" } })
  assert.deepEqual([...new Set(fetched)].sort(), ["task 1", "task 2", "task list"])
})

test("a replication pulls once for the changes of a turn", async () => {
  const pulls: string[] = []
  const { changes, network } = await subscribed(entities => resyncOnChange(entities, "task", { next: item => void pulls.push(item) }))
  await changes(["1", "UPDATE", 1], ["2", "UPDATE", 2])
  assert.deepEqual(pulls, ["RESYNC"])
  await network.socket.says({ type: "RESYNC", payload: { reason: "overflow" } })
  assert.deepEqual(pulls, ["RESYNC", "RESYNC"])
})
