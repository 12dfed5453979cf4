--! include limits
-- Counts leases (id, address, id, address, ...) at the gates that have limits, and deletes the counts of gates that have none.
local function count_leases(all)
  local gone = {}
  for i = 1, #all, 2 do
    local counts = {}
    for _, g in ipairs(gates_of(all[i + 1])) do
      redis.call('SADD', held_key(g), all[i])
      counts[g] = true
    end
    local q, task_type, _, user, task_key = split_lane(all[i + 1])
    for _, g in ipairs({ 't:' .. task_type, 'k:' .. task_key, 'u:' .. q .. '\30' .. user }) do
      if not counts[g] then gone[g] = true end
    end
  end
  for g in pairs(gone) do redis.call('DEL', held_key(g)) end
end
