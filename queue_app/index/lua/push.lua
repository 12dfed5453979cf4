-- Puts queued tasks at their places in their lanes: after an enqueue, a retry that came due or a change of priority, and
-- when the reconciler or a rebuild finds a task missing or misplaced.
--
-- ARGV     address, ids, own scores, address, ids, own scores, ...: ids one after another, 16 bytes each; scores
--          (band * 10^13 + queued_at, ms) as big-endian doubles, in the same order, or a single one for all ids; at most
--          1000 ids of an address. An address always names the user; the queue decides whether it tells its users apart
-- Returns  how many ids were missing or misplaced
--
-- While a rebuild loads the tasks of a queue and band in their order, a task behind those that it has loaded is left to it.
-- Its row is there, so the rebuild finds it. Otherwise an idle worker would start a new task before older ones.
-- Idempotent: a task stays in the lane in which it waits. An id that holds a lease is left alone: its row decides about the
-- claim.
-- Age lifts a task above its own score. A task that waits below because its promotion has not come yet is lifted, and does
-- not count as misplaced.
--! include packed
--! include wake
--! include promotion

-- The place for a task that does not wait yet: that of a gate which holds it back now, else the first.
local function place_for_new(address)
  local all = places(address)
  for i = 2, #all do
    if gate_room(all[i][3]) <= 0 then return all[i] end
  end
  return all[1]
end

local generation_state = redis.call('HGET', GENERATION, 'state')
local is_loading, loaded = generation_state == 'loading' or generation_state == 'rebuilding', {}  -- queue, band -> score
local function is_left_to_rebuild(q, given)  -- by band and time of the row
  local part = q .. '\31' .. whole(math.floor(given / 1e13))
  loaded[part] = loaded[part] or tonumber(redis.call('HGET', LOADING, part) or nil) or math.huge
  return given > loaded[part]
end

local changed, lanes = 0, {}  -- lane -> {address, before: id and score of its first task, moved, is_new}
local function open_lane_for_push(place, address)
  local lane = place[1]
  if not lanes[lane] then lanes[lane] = { address = address, before = { first_of(lane_key(lane)) }, moved = 0 } end
  return lanes[lane]
end

for at = 1, #ARGV, 3 do
  local address, ids, scores = address_of(ARGV[at]), unpack_ids(ARGV[at + 1]), own_places(ARGV[at], ARGV[at + 2])
  local where, target = open_places(address), place_for_new(address)
  local is_simple, found = #where == 1 and target[1] == where[1][1], {}  -- lane -> score, member, ...
  local leased = redis.call('HMGET', LEASES, unpack(ids))
  local q = split_lane(address)
  local given, own, score, effective = is_loading and unpack_places(ARGV[at + 2])
  for i = 1, #ids do
    if scores[i] then
      own = scores[i]
      effective = effective_place(own, q)
      score = exact(effective)
    end
    if not leased[i] and not (given and is_left_to_rebuild(q, given[i] or given[1])) then
      local place = is_simple and target or find_task(where, ids[i]) or target
      local lane, member = place[1], ids[i] .. place[2]
      local state = open_lane_for_push(place, address)
      if not (effective ~= own and lift(lane, member, own, effective)) then
        found[lane] = found[lane] or {}
        table.insert(found[lane], score)
        table.insert(found[lane], member)
      end
    end
  end
  for lane, scores_and_members in pairs(found) do
    local moved = redis.call('ZADD', lane_key(lane), 'CH', unpack(scores_and_members))
    lanes[lane].moved = lanes[lane].moved + moved
    lanes[lane].is_new = list_lane(lane) or lanes[lane].is_new
    changed = changed + moved
  end
end
for lane, state in pairs(lanes) do
  local id, score = first_of(lane_key(lane))
  if state.is_new or id ~= state.before[1] or score ~= state.before[2] then refresh_lane(lane) end
end
refresh_touched()
for _, state in pairs(lanes) do
  if state.moved > 0 then wake_for_lane(state.address) end
end
count_promotions()
return changed
