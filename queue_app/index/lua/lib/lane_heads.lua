--! include heads
-- Puts a lane in the list of a group ('': of its queue) at `score`; removes it where there is none.
local function set_head(p, q, g, lane, score)
  local fair = queue_policy(q).fair
  local who = fair and turn_owner(fair, lane)
  local key = fair and turn_key(p, q, g, who) or list_key(p, q, g)
  if score then redis.call('ZADD', key, score, lane) else redis.call('ZREM', key, lane) end
  if fair then refresh_turn(p, q, g, who) end
  touch(p, q, g)
end

local has_groups = {}  -- profile -> whether any of its lanes is grouped
local function group_of(p, lane)
  if not has_gate_limits() then return '' end
  if has_groups[p] == nil then has_groups[p] = redis.call('EXISTS', at_key(p)) == 1 end
  return has_groups[p] and redis.call('HGET', at_key(p), lane) or ''
end

local function move_to_group(p, q, lane, from, g)
  set_head(p, q, from, lane)
  redis.call('HSET', at_key(p), lane, g)
  has_groups[p] = true
end

-- Puts a lane at the score of its first task, for one profile that can run it. A lane that a limit has opened is grouped behind
-- that, one of a limited type or key behind this from the start, one of a limited user when the user has no room.
local function place_lane(p, lane, score)
  local q = split_lane(lane)
  local g = group_of(p, lane)
  if not score then
    set_head(p, q, g, lane)
    if g ~= '' then redis.call('HDEL', at_key(p), lane) end
    return
  end
  local gates = gates_of(lane)
  local behind = opener_of(lane) or (gates[1] and string.sub(gates[1], 1, 1) ~= 'u' and gates[1])
  if g == '' and behind then
    move_to_group(p, q, lane, g, behind)
    g = behind
  end
  set_head(p, q, g, lane, score)
end

-- Moves a lane to the score of its first task, which is later than before, where it stands already: in the heads of all profiles
-- that can run it. Of many profiles, only that of the caller moves the queue too; for the others the queue stands too early
-- until they claim from it, which does no harm.
local FEW = 16
local function raise_lane(profile, lane)
  local q, score = split_lane(lane), select(2, first_of(lane_key(lane)))
  for _, p in ipairs(profiles()) do
    local g = group_of(p, lane)
    local is_moved = redis.call('ZADD', list_key(p, q, g), 'XX', 'CH', score, lane) == 1
    if is_moved and (p == profile or g ~= '' or #profiles() <= FEW) then touch(p, q, g) end
  end
end

-- Puts a lane at the score of its first task, for every profile that can run it.
local function refresh_lane(lane)
  local id, score = first_of(lane_key(lane))
  if not id then unlist_lane(lane, (split_lane(lane))) end
  for _, p in ipairs(profiles_for(lane)) do place_lane(p, lane, score) end
end
