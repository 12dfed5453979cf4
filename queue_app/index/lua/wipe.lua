-- Deletes keys of earlier generations, unless a later rebuild has begun: its keys stay.
--
-- ARGV[1]  number of the generation that wipes
-- ARGV[2]  field of the generation that ends: 'reshaped' before the first key, 'wiping' after the last one; else ''
-- ARGV[3..] full keys, at most 1000
-- Returns  1, or 0 when the index carries another generation by now
--! include keys
if redis.pcall('HGET', GENERATION, 'number') ~= ARGV[1] then return 0 end
if ARGV[2] ~= '' then redis.call('HDEL', GENERATION, ARGV[2]) end
if ARGV[3] then redis.call('UNLINK', unpack(ARGV, 3)) end
return 1
