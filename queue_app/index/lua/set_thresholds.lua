-- Copies the thresholds of promotion from the policies of the bands.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  seconds that a task waits as normal until it counts as high, or '' for ever
-- ARGV[2]  the same for low to normal    ARGV[3]  the same for background to low
-- Returns  1 when anything changed
--
-- Moves nothing: the next promotion, or the reconciler, goes by them.
--! include keys
local changed = 0
for i = 1, 3 do
  local field = 'promote_' .. (i + 1)
  if (redis.call('HGET', SETTINGS, field) or '') ~= ARGV[i] then
    changed = 1
    if ARGV[i] == '' then
      redis.call('HDEL', SETTINGS, field)
    else
      redis.call('HSET', SETTINGS, field, ARGV[i])
    end
  end
end
return changed
