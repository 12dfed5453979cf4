--! include merge
-- Leases the picks, and takes them from their lanes. A function has local variables of its own, of which Lua allows 200.
local function write_picks(stamp, reply, changed, passed)
  local leases, members_of_lanes, addresses = {}, {}, {}
  for _, each in ipairs(picks) do
    local id, q, lane, member, address = unpack(each)
    reply[#reply + 1] = id
    reply[#reply + 1] = q
    leases[q] = leases[q] or {}
    table.insert(leases[q], stamp)
    table.insert(leases[q], id)
    members_of_lanes[lane] = members_of_lanes[lane] or {}
    table.insert(members_of_lanes[lane], member)
    addresses[#addresses + 1] = id
    addresses[#addresses + 1] = address
    local is_paced = queue_policy(q).interval or queue_policy(q).delay
    for _, g in ipairs(gates_of(address)) do
      passed[g] = passed[g] or {}
      table.insert(passed[g], id)
      is_paced = is_paced or gate_policy(g).interval or gate_policy(g).delay
    end
    if is_paced then table.insert(reply[5], id) end
  end
  for q, stamps_and_ids in pairs(leases) do
    redis.call('ZADD', queue_leases_key(q), unpack(stamps_and_ids))
    record_starts('q:' .. q, queue_policy(q), #stamps_and_ids / 2)
  end
  for lane, members in pairs(members_of_lanes) do
    redis.call('ZREM', lane_key(lane), unpack(members))
    changed[lane] = changed[lane] or 'taken'
  end
  if #picks > 0 then write_leases(addresses) end
  return members_of_lanes
end
